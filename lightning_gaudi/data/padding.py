"""Pads samples of different lengths to tensors of one shape.

Shapes: B samples in a batch, T tokens that each is padded to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_gaudi.data.buckets import too_long

__all__ = ["pad_batch"]


def pad_batch(
    samples: Sequence[Mapping[str, Any]],
    length: int,
    *,
    pad_values: Mapping[str, float] | None = None,
    lengths: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Stacks samples, each a mapping of names to values, padding sequences at their end.

    Where samples have `input_ids` but no `attention_mask`, one is made. Use it as `collate_fn` of
    a `BucketDataLoader`, with `functools.partial` where settings are needed.

    Args:
        samples: B mappings with the same names. A list, array or tensor of one dimension is
            padded; numbers and tensors of several dimensions are stacked; what torch cannot hold,
            such as strings, stays a list.
        length: what sequences are padded to (T).
        pad_values: by name, what to pad with, such as {"labels": -100}. Default: 0.
        lengths: by name, another length than T, such as {"labels": 64} for a decoder.

    Returns:
        By name, tensors [B, T], [B], or [B, ...] in the type of the samples, on the CPU.

    Raises:
        ValueError: for a sequence longer than its length, samples that are no mappings, and names
            that differ between samples.
    """
    pad_values, lengths = pad_values or {}, lengths or {}
    if not isinstance(samples[0], Mapping):
        raise ValueError(
            "The samples of pad_batch must be mappings of names to values, but are "
            f"{type(samples[0]).__name__}. Give the loader your own collate_fn(samples, length)."
        )
    names = samples[0].keys()
    for index, sample in enumerate(samples):
        if sample.keys() != names:
            raise ValueError(
                f"Samples of a batch must have the same names, but the first has {sorted(names)} "
                f"and sample {index} of the batch has {sorted(sample)}."
            )
    batch: dict[str, Any] = {}
    for name in names:
        values = [sample[name] for sample in samples]
        limit = lengths.get(name, length)
        batch[name] = _stack(values, limit, pad_values.get(name, 0), name)
    if "input_ids" in batch and "attention_mask" not in batch:
        ones = [np.ones(len(sample["input_ids"]), np.int64) for sample in samples]
        limit = lengths.get("input_ids", length)
        batch["attention_mask"] = _stack(ones, limit, 0, "attention_mask")
    return batch


def _stack(values: list[Any], length: int, pad_value: float, name: str) -> Tensor | list[Any]:
    if isinstance(values[0], (str, bytes, Mapping)) or values[0] is None:
        return values
    if isinstance(values[0], Tensor):
        arrays = values
        if values[0].ndim != 1:
            return torch.stack(values)
        rows: Any = torch.full((len(values), length), pad_value, dtype=values[0].dtype)
    else:
        arrays = [np.asarray(value) for value in values]
        # The type of the longest one, since an empty list becomes an array of floats.
        dtype = max(arrays, key=np.size).dtype
        # Python's floats have 64 bits, which no Gaudi computes with.
        dtype = np.dtype(np.float32) if dtype == np.float64 else dtype
        if arrays[0].ndim != 1:
            return torch.from_numpy(np.stack(arrays).astype(dtype))
        rows = np.full((len(values), length), pad_value, dtype)
    for row, array in zip(rows, arrays, strict=True):
        if len(array) > length:
            raise ValueError(f"{name}: {too_long(len(array), length)}")
        row[: len(array)] = array
    return rows if isinstance(rows, Tensor) else torch.from_numpy(rows)
