"""Reports which shapes a loader gives, how many graphs these need, and how much is padding."""

from __future__ import annotations

import contextlib
import copy
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_gaudi._core.batch_shapes import named_tensors
from lightning_gaudi.data.sampler import BucketBatchSampler

__all__ = ["ShapeReport", "describe"]

Shape: TypeAlias = tuple[int, ...]
_Signature: TypeAlias = tuple[tuple[str, str, Shape], ...]
"""Name, dtype and shape of every tensor of a batch."""

_MAX_ROWS = 12


@dataclass
class ShapeReport:
    """Holds what `describe` has found; `print` shows it as a table."""

    num_batches: int = 0
    """The number of batches that were looked at."""
    num_batches_total: int | None = None
    """The number of batches of the loader; None if it does not say."""
    signatures: Counter[_Signature] = field(default_factory=Counter)
    """How many batches have each set of (name, dtype, shape) of tensors, the commonest first."""
    tokens: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By name of tensor: how many of its places hold a token, and how many places it has."""

    @property
    def shapes(self) -> dict[str, Counter[Shape]]:
        """By name of tensor: how many batches have each of its shapes."""
        shapes: dict[str, Counter[Shape]] = {}
        for signature, count in self.signatures.items():
            for name, _, shape in signature:
                shapes.setdefault(name, Counter())[shape] += count
        return shapes

    @property
    def num_compilations(self) -> int:
        """How often a device compiles each graph that depends on the batch.

        It is the number of distinct sets of shapes and dtypes, each of which is another graph. A
        training step has one such graph (forward and backward), validation another one; the
        optimizer's depends on no batch.
        """
        return len(self.signatures)

    @property
    def padding(self) -> dict[str, float]:
        """By name of tensor: the share of its places that hold no token, 0 to 1."""
        return {name: 1 - real / places for name, (real, places) in self.tokens.items()}

    def __str__(self) -> str:
        of = "" if self.num_batches_total is None else f" of {self.num_batches_total}"
        count = self.num_compilations
        shapes, times = (
            ("one shape", "once") if count == 1 else (f"{count} shapes", f"{count} times")
        )
        lines = [
            f"{self.num_batches}{of} batches have {shapes}: each graph that takes a batch is "
            f"compiled {times}."
        ]
        if self.num_batches_total is not None and self.num_batches < self.num_batches_total:
            lines.append("The other batches may have further shapes.")
        for signature, count in self.signatures.most_common(_MAX_ROWS):
            tensors = (f"{name} {list(shape)}" for name, _, shape in signature)
            lines.append(f"{count:8d} x {', '.join(tensors)}")
        if (left_out := len(self.signatures) - _MAX_ROWS) > 0:
            lines.append(f"     and {left_out} more")
        for name, share in self.padding.items():
            lines.append(f"{share:8.1%} of {name} is padding")
        if not self.padding:
            lines.append("Padding is not known: pass pad_ids={'name of a tensor': padding id}.")
        return "\n".join(lines)


def describe(
    dataloader: Iterable[Any],
    *,
    pad_ids: Mapping[str, int] | None = None,
    max_batches: int | None = None,
) -> ShapeReport:
    """Goes through the batches of a loader and reports their shapes and their padding.

    The loader is left as it was: a copy of it loads the batches of the coming epoch in this
    process, and the state of the random number generators is restored. On several ranks these are
    the batches of this rank.

    `pad_ids` says what is padding in a tensor. Without it, padding in `input_ids` is what
    `sequence_ids` or `attention_mask` mark by 0, or what exceeds the number `num_tokens`; and in
    `decoder_input_ids` it is what `decoder_attention_mask` marks. Rows that only fill a batch, as
    `is_real` says, are padding, too.

    Args:
        dataloader: a DataLoader, or anything that can be iterated over more than once. Batches are
            tensors, or mappings, tuples and lists of them; what is no tensor is left out.
        pad_ids: by name of a tensor, the number that marks padding, such as {"labels": -100}.
        max_batches: the most batches to look at. Default: all, each of which is loaded once.

    Returns:
        The report.

    Raises:
        ValueError: for an iterator, or a data set that is one, since it would be used up; for a
            loader without batches; and for a name in `pad_ids` that a batch does not have.
    """
    for source in (dataloader, getattr(dataloader, "dataset", None)):
        if isinstance(source, Iterator):
            raise ValueError(
                f"describe would use up this {type(source).__name__}: pass what can be iterated "
                "over anew, such as the DataLoader of a list."
            )
    report = ShapeReport()
    with _random_state_restored():
        twin = _copy_without_workers(dataloader) if isinstance(dataloader, DataLoader) else None
        with contextlib.suppress(TypeError):  # it has no length
            report.num_batches_total = len(dataloader)  # type: ignore[arg-type]
        for batch in islice(iter(dataloader if twin is None else twin), max_batches):
            _add(report, dict(named_tensors(batch)), pad_ids or {})
    if not report.num_batches:
        raise ValueError("The loader gave no batch to describe: check its data set.")
    return report


def _copy_without_workers(dataloader: DataLoader[Any]) -> DataLoader[Any]:
    """Returns a loader of the same batches that shares the data set and nothing that changes."""
    twin = copy.copy(dataloader)
    shared = {id(dataloader.dataset): dataloader.dataset}
    # One memo for all, so that a batch sampler's copy is around the copy of the sampler.
    for name in ("sampler", "batch_sampler", "generator"):
        twin.__dict__[name] = copy.deepcopy(getattr(dataloader, name), shared)
    if isinstance(twin.sampler, BucketBatchSampler):
        twin.sampler.progress.begin()  # so that it starts at the first batch after a resume, too
    twin.__dict__ |= {
        "num_workers": 0,
        "prefetch_factor": None,
        "persistent_workers": False,
        "pin_memory": False,
        "timeout": 0,
        "_iterator": None,
    }
    return twin


@contextlib.contextmanager
def _random_state_restored() -> Iterator[None]:
    state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(state[0])
        np.random.set_state(state[1])
        torch.set_rng_state(state[2])


def _add(report: ShapeReport, batch: dict[str, Any], pad_ids: Mapping[str, int]) -> None:
    """Counts the shapes and the padding of one more batch."""
    tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
    report.num_batches += 1
    report.signatures[
        tuple((name, str(value.dtype), tuple(value.shape)) for name, value in tensors.items())
    ] += 1
    for name, pad_id in pad_ids.items():
        if name not in tensors:
            raise ValueError(f"pad_ids names {name!r}, but a batch has {sorted(tensors)}.")
        _count(report, name, tensors[name] != pad_id, batch)
    for name, masks in MASKS.items():
        if name in tensors and name not in pad_ids:
            mask = next((tensors[mask] for mask in masks if mask in tensors), None)
            if mask is not None and mask.shape == tensors[name].shape:
                _count(report, name, mask != 0, batch)
            elif name == "input_ids" and "num_tokens" in batch:
                _add_tokens(report, name, int(torch.as_tensor(batch["num_tokens"]).sum()), tensors)


MASKS = {
    "input_ids": ("sequence_ids", "attention_mask"),
    "decoder_input_ids": ("decoder_attention_mask",),
}


def _count(report: ShapeReport, name: str, is_token: Tensor, batch: dict[str, Any]) -> None:
    is_real = batch.get("is_real")
    if isinstance(is_real, Tensor) and is_real.shape[:1] == is_token.shape[:1]:
        is_token = is_token & is_real.view(-1, *[1] * (is_token.ndim - 1))
    _add_tokens(report, name, int(is_token.sum()), batch)


def _add_tokens(report: ShapeReport, name: str, num_tokens: int, batch: dict[str, Any]) -> None:
    real, places = report.tokens.get(name, (0, 0))
    report.tokens[name] = (real + num_tokens, places + batch[name].numel())
