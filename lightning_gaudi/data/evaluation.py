"""Makes loaders for evaluation with one batch shape, whose last batch is filled up and marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset, default_collate

from lightning_gaudi.data.loader import BucketDataLoader
from lightning_gaudi.data.sampler import BucketBatchSampler

__all__ = ["evaluation_loader"]


def evaluation_loader(
    dataset: Dataset[Any] | Sequence[Any],
    batch_size: int,
    collate_fn: Callable[[list[Any]], Any] = default_collate,
    *,
    num_ranks: int | None = None,
    rank: int | None = None,
    **kwargs: Any,
) -> BucketDataLoader:
    """Returns a loader for evaluation whose batches are all full, for any data set with a length.

    Each sample comes exactly once, in order; with several ranks they take turns, in equally many
    batches. The last batch is filled up with repeated samples, and every batch says by `is_real`
    which rows count: see `BucketDataLoader`. Let the samples carry their index where predictions
    have to be put in order. For buckets, use that loader with a
    `BucketBatchSampler(..., shuffle=False)`.

    Args:
        dataset: samples by index.
        batch_size: rows of each batch on each rank (B).
        collate_fn: makes a batch of B samples, always of the same shape.
        num_ranks: processes that share the samples; None asks torch.distributed.
        rank: the number of this process among them; None asks torch.distributed, too.
        kwargs: further arguments of `BucketDataLoader`, such as `num_workers`.

    Returns:
        The loader.

    Raises:
        ValueError: for an empty data set and a batch size below one.
    """
    sampler = BucketBatchSampler(
        # One byte of memory, however many samples there are.
        np.broadcast_to(np.int8(1), len(dataset)),  # type: ignore[arg-type]
        [1],
        batch_size,
        shuffle=False,
        num_ranks=num_ranks,
        rank=rank,
    )
    return BucketDataLoader(dataset, sampler, _WithoutLength(collate_fn), **kwargs)


class _WithoutLength:
    """Calls a usual collate function, which is not told a length to pad to."""

    def __init__(self, collate_fn: Callable[[list[Any]], Any]) -> None:
        self.collate_fn = collate_fn

    def __call__(self, samples: list[Any], length: int) -> Any:
        return self.collate_fn(samples)
