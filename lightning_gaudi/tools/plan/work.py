"""What the operators of a step compute, move and send, counted as they are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from lightning_gaudi._core.flops import PRODUCTS, FlopCounter
from lightning_gaudi.simulator import replays, statistics

ON_CHIP_BYTES = 2**27
"""More than any of the cards keeps beside its memory: what is read after so much is read again.

Source: Intel, "Intel Gaudi 3 AI Accelerator", Hot Chips 2024 (24, 48 and 96 MB); NVIDIA, "A100
Tensor Core GPU" and "H100 Tensor Core GPU" architecture papers (caches of 40 and 50 MB).
"""


class _Part(NamedTuple):
    """What was counted until a moment, or between two."""

    flops: int
    moved_bytes: int
    weight_bytes: int
    num_reads: int
    sent: Counter[str]

    def since(self, before: _Part) -> _Part:
        """Returns what came behind another moment."""
        return _Part(
            self.flops - before.flops,
            self.moved_bytes - before.moved_bytes,
            self.weight_bytes - before.weight_bytes,
            self.num_reads - before.num_reads,
            self.sent - before.sent,
        )


class _Graph(NamedTuple):
    """What was captured."""

    graph: object
    """Kept, so that its number stays its own."""
    part: _Part
    reads: list[int]
    """The weights that it reads, in their order."""


class Work(FlopCounter):  # type: ignore[no-untyped-call]
    """Counts while it is on. What is compiled runs as it was written then.

    A graph of lazy mode counts at each replay as at its capture, which is when its operators are
    called.

    Args:
        weights: Of the model.
    """

    def __init__(self, weights: Iterable[Tensor] = ()) -> None:
        # A Gaudi 2 computes twice as fast in fp8 (`hardware`), and a time is to be the least one.
        super().__init__(counts_recomputed=True, fp8_cost=0.5)
        self.moved_bytes = 0
        """Read and written by all operators that compute, if none is fused with another."""
        self.weight_bytes = 0
        """Of the weights that products of matrices read, each as often as it must be brought."""
        self.is_complete = True
        """Whether the operations of all products of matrices are known."""
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
        """Bytes that this rank has sent over its links for each kind of collective."""
        counted = {kind: each["sent"] for kind, each in statistics.collective_stats().items()}
        return Counter(counted) + self._sent_by_replays

    def note_capture(self) -> None:
        """Remembers where the capture of a graph begins."""
        self._captured_from = self.so_far()

    def note_captured(self, graph: object, is_run: bool) -> None:
        """Remembers what a graph is made of."""
        before = self._captured_from
        part = self.so_far().since(before)
        self._graphs[id(graph)] = _Graph(graph, part, self._reads[before.num_reads :])
        if not is_run:
            self._add(part, -1)

    def note_replay(self, graph: object) -> None:
        """Counts a graph again."""
        if (known := self._graphs.get(id(graph))) is not None:
            self._add(known.part, 1)
            for key in known.reads:
                self._read_weight(key)

    def so_far(self) -> _Part:
        """Returns what was counted until now."""
        return _Part(
            self.num_flops, self.moved_bytes, self.weight_bytes, len(self._reads), self.sent
        )

    def _add(self, part: _Part, times: int) -> None:
        self.num_flops += times * part.flops
        self.moved_bytes += times * part.moved_bytes
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
        num_calls = self._num_calls
        try:
            result = super().__torch_dispatch__(func, types, args, kwargs)
        except ValueError:  # nobody knows how many; what the operator itself raises comes again
            self.is_complete = False
            result = func(*args, **(kwargs or {}))
        if self._num_calls > num_calls or func.is_view:
            return result  # what it is made of has been counted, or it moves nothing
        is_product = PRODUCTS.search(func.name()) is not None
        for each in tree_leaves((args, kwargs, result)):
            if isinstance(each, Tensor) and each.device.type == "hpu":
                self.moved_bytes += each.numel() * each.element_size()
                if is_product and (key := _key(each)) in self._weights:
                    self._reads.append(key)
                    self._read_weight(key)
        return result

    def _read_weight(self, key: int) -> None:
        since = self.weight_bytes - self._read_at.get(key, -ON_CHIP_BYTES)
        if since >= ON_CHIP_BYTES:
            self.weight_bytes += self._weights[key]
        self._read_at[key] = self.weight_bytes


def _key(tensor: Tensor) -> int:
    """Returns the memory that a tensor shows, as long as it is there."""
    return int(tensor.untyped_storage()._cdata)
