"""Counts what the operators of a step compute, move and send as they are called."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from lightning_gaudi._core.flops import PRODUCTS, FlopCounter
from lightning_gaudi.simulator import replays, statistics
from lightning_gaudi.tools.plan.request import CONVOLUTION

ON_CHIP_BYTES = 2**27
"""More than the caches of any card hold: weights are read again after so many bytes.

Source: Intel, "Intel Gaudi 3 AI Accelerator", Hot Chips 2024 (24, 48 and 96 MB); NVIDIA, "A100
Tensor Core GPU" and "H100 Tensor Core GPU" architecture papers (caches of 40 and 50 MB).
"""


_ATTENTION = re.compile(r"::(_?(safe_)?softmax|_?scaled_dot_product\w*|(fp8_)?sdpa\w*)(\.|$)")
_BACKWARD = re.compile(r"_(backward|bwd)")
_CASTS = re.compile(r"::(_to_copy|native_dropout\w*)(\.|$)")
_CONVOLUTION = re.compile(r"::\w*conv(olution|\dd)")


class Part(NamedTuple):
    """Holds what was counted until a moment, or between two moments."""

    flops: int
    moved_bytes: int
    weight_bytes: int
    num_reads: int
    sent: Counter[str]
    flops_of: Counter[str]
    num_operators: int
    num_attentions: int
    num_cross_attentions: int
    fused_bytes: int
    product_bytes: int
    reads_of: Counter[int]

    @property
    def num_passes(self) -> int:
        """How often all weights were read: once in a forward, and once for a token of a text."""
        return max(self.reads_of.values(), default=0)

    def since(self, before: Part) -> Part:
        """Returns what was counted since another moment."""
        return self.plus(before, -1)

    def plus(self, other: Part, times: int) -> Part:
        """Returns the same with another part so many times."""
        pairs = zip(self, other, strict=True)
        return Part(*(_sum(mine, theirs, times) for mine, theirs in pairs))


def _sum(mine: Any, theirs: Any, times: int) -> Any:
    if not isinstance(mine, Counter):
        return mine + times * theirs
    # The sum of two has only numbers above 0.
    return mine + Counter({key: times * number for key, number in theirs.items()})


class _Graph(NamedTuple):
    """Holds what a captured graph counts."""

    graph: object
    """The graph, kept so that its `id` stays its own."""
    part: Part
    reads: list[int]
    """The weights that it reads, in order."""


class Work(FlopCounter):  # type: ignore[no-untyped-call]
    """Counts operators while it is on; compiled code runs uncompiled then.

    The operators of a captured graph are called only at its capture, and are counted again at each
    replay.

    Args:
        weights: The weights of the model.
    """

    def __init__(self, weights: Iterable[Tensor] = ()) -> None:
        # A Gaudi 2 computes twice as fast in fp8 (`hardware`), and the least time is wanted.
        super().__init__(counts_recomputed=True, fp8_cost=0.5)
        self.moved_bytes = 0
        """The bytes that all operators read and write, if none is fused with another."""
        self.weight_bytes = 0
        """The bytes of weights that products read, as often as these must be fetched."""
        self.is_complete = True
        """Whether the operations of all products of matrices are known."""
        self.flops_of: Counter[str] = Counter()
        """The operations by the dtype of the factors, and those of convolutions."""
        self.num_operators = 0
        """The number of calls of operators that compute."""
        self.num_attentions = 0
        """Calls of those that weigh values: a layer of attention has one in its forward."""
        self.num_cross_attentions = 0
        """Of these, those with as many queries as one sequence has, and keys as another has."""
        self.fused_bytes = 0
        """The bytes that are read and written, if elementwise operators are fused."""
        self.product_bytes = 0
        """The bytes of these that products of matrices read and write."""
        self._on_chip: set[int] = set()
        """The memory of elementwise results that no operator of another kind has read yet."""
        self._reads_of: Counter[int] = Counter()
        self._weights = {_key(each): each.untyped_storage().nbytes() for each in weights}
        self._read_at: dict[int, int] = {}
        self._reads: list[int] = []
        self._num_calls = 0
        self._sent_by_replays: Counter[str] = Counter()
        self._captured_from = self.so_far()
        self._graphs: dict[int, _Graph] = {}

    @override
    def start(self) -> None:
        replays.follow(self)
        super().start()

    @override
    def stop(self) -> None:
        super().stop()
        replays.follow(None)

    @property
    def sent(self) -> Counter[str]:
        """The bytes that this rank has sent over its links, by kind of collective."""
        counted = {kind: each["sent"] for kind, each in statistics.collective_stats().items()}
        return Counter(counted) + self._sent_by_replays

    def note_capture(self) -> None:
        """Notes that the capture of a graph begins."""
        self._captured_from = self.so_far()

    def note_captured(self, graph: object, is_run: bool) -> None:
        """Notes that a graph was captured, and keeps what it counts."""
        before = self._captured_from
        part = self.so_far().since(before)
        self._graphs[id(graph)] = _Graph(graph, part, self._reads[before.num_reads :])
        if not is_run:
            self._add(part, -1)

    def note_replay(self, graph: object) -> None:
        """Counts a graph that is replayed."""
        if (known := self._graphs.get(id(graph))) is not None:
            self._add(known.part, 1)
            for key in known.reads:
                self._read_weight(key)

    def so_far(self) -> Part:
        """Returns what was counted until now."""
        return Part(
            self.num_flops,
            self.moved_bytes,
            self.weight_bytes,
            len(self._reads),
            self.sent,
            self.flops_of.copy(),
            self.num_operators,
            self.num_attentions,
            self.num_cross_attentions,
            self.fused_bytes,
            self.product_bytes,
            self._reads_of.copy(),
        )

    def _add(self, part: Part, times: int) -> None:
        self.num_flops += times * part.flops
        self.moved_bytes += times * part.moved_bytes
        self.num_operators += times * part.num_operators
        self.num_attentions += times * part.num_attentions
        self.num_cross_attentions += times * part.num_cross_attentions
        self.fused_bytes += times * part.fused_bytes
        self.product_bytes += times * part.product_bytes
        for name, flops in part.flops_of.items():
            self.flops_of[name] += times * flops
        for kind, num_bytes in part.sent.items():
            self._sent_by_replays[kind] += times * num_bytes

    @override
    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self._num_calls += 1
        num_calls, num_flops = self._num_calls, self.num_flops
        try:
            result = super().__torch_dispatch__(func, types, args, kwargs)
        # The number of operations is not known. An error of the operator itself comes again below.
        except ValueError:
            self.is_complete = False
            result = func(*args, **(kwargs or {}))
        if self._num_calls > num_calls or func.is_view:
            return result  # its parts were counted, or it moves nothing
        self._note_operator(func.name(), (args, kwargs), self.num_flops - num_flops)
        self._note_fused(func, (args, kwargs), result)
        is_product = PRODUCTS.search(func.name()) is not None
        for each in tree_leaves((args, kwargs, result)):
            if isinstance(each, Tensor) and each.device.type == "hpu":
                self.moved_bytes += each.numel() * each.element_size()
                if is_product and (key := _key(each)) in self._weights:
                    self._reads.append(key)
                    self._read_weight(key)
        return result

    def _note_operator(self, name: str, inputs: Any, flops: int) -> None:
        tensors = [each for each in tree_leaves(inputs) if isinstance(each, Tensor)]
        self.num_operators += 1
        if _ATTENTION.search(name) and not _BACKWARD.search(name):
            self.num_attentions += 1
            self.num_cross_attentions += _is_between_sequences(name, tensors)
        if flops:
            dtype = next((each.dtype for each in tensors if each.is_floating_point()), "")
            self.flops_of[str(dtype).removeprefix("torch.")] += flops
            if _CONVOLUTION.search(name):
                self.flops_of[CONVOLUTION] += flops

    def _note_fused(self, func: Any, inputs: Any, result: Any) -> None:
        """Counts the bytes that would be left by a compiler which fuses operators.

        The result of an elementwise operator stays on the chip for others of its kind. It is
        written when an operator of another kind reads it.
        """
        before = self.fused_bytes
        is_fused = torch.Tag.pointwise in func.tags or _CASTS.search(func.name()) is not None
        for each in tree_leaves(inputs):
            if not isinstance(each, Tensor) or each.device.type != "hpu":
                continue
            key, size = _key(each), each.numel() * each.element_size()
            if key not in self._on_chip:
                self.fused_bytes += size
            elif not is_fused:
                self.fused_bytes += 2 * size
                self._on_chip.discard(key)
        for each in tree_leaves(result):
            if isinstance(each, Tensor) and each.device.type == "hpu":
                self._on_chip.discard(_key(each))
                if is_fused:
                    self._on_chip.add(_key(each))
                else:
                    self.fused_bytes += each.numel() * each.element_size()
        if PRODUCTS.search(func.name()):
            self.product_bytes += self.fused_bytes - before

    def _read_weight(self, key: int) -> None:
        self._reads_of[key] += 1
        since = self.weight_bytes - self._read_at.get(key, -ON_CHIP_BYTES)
        if since >= ON_CHIP_BYTES:
            self.weight_bytes += self._weights[key]
        self._read_at[key] = self.weight_bytes


def _is_between_sequences(name: str, tensors: list[Tensor]) -> bool:
    """Returns whether an attention has queries of another sequence than its keys, by their number.

    Args:
        name: The operator's.
        tensors: Its inputs: scores (..., T queries, T keys), or queries and keys (..., T, D).
    """
    if tensors[0].dim() < 3:  # classes of samples, or experts of tokens
        return False
    rows, second = tensors[0].shape[-2:], tensors[1].shape[-2] if len(tensors) > 1 else 0
    return bool(rows[0] != (rows[1] if "softmax" in name else second))


def _key(tensor: Tensor) -> int:
    """Returns a key of the memory that a tensor shows, valid as long as the memory is in use."""
    return int(tensor.untyped_storage()._cdata)
