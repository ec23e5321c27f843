"""A DataLoader of bucket batches that Lightning takes as it is, saves and resumes.

Shapes: B samples in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from multiprocessing.context import BaseContext
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightning_gaudi.data.padding import pad_batch
from lightning_gaudi.data.sampler import BucketBatch, BucketBatchSampler

__all__ = ["BucketDataLoader", "worker_context"]

Collate: TypeAlias = "Callable[[list[Any], int], Any]"

_NO_LABEL = -100  # what torch's cross-entropy ignores
_SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)


class BucketDataLoader(DataLoader[Any]):
    """Loads the batches of a `BucketBatchSampler`, in a Trainer, in Fabric or in a plain loop.

    On several ranks Lightning leaves it as it is: the sampler already gives each rank its share,
    so `use_distributed_sampler` need not be turned off. Lightning saves its position in
    checkpoints and goes on there, within an epoch too: `state_dict` counts the batches that were
    taken from the loader, not those that workers have prepared ahead. (It does not know where
    `limit_train_batches` ends an epoch: resumed exactly there, it first gives what is left.)

    Where the sampler fills up its last batch (evaluation), every batch has in addition `is_real`,
    bool [B]: False for a row that only fills, which repeats a real sample. Its integer `labels`
    are -100, which torch's cross-entropy ignores. Leave such rows out of metrics. A batch that is
    no mapping gets `is_real` as its last element.

    Args:
        dataset: samples by index, in the order of the sampler's lengths.
        batches: the sampler, which says what each batch holds. `batch_sampler`, DataLoader's name
            for it, is taken as well.
        collate_fn: makes a batch of `(samples, length)`: B samples of the data set and the number
            of tokens to pad each to. Default: `pad_batch`.
        with_epoch: whether to ask the data set for `(epoch, index)` rather than `index`, so that
            what it draws at random, such as masks, can depend on the epoch and is the same after
            resuming.
        label_names: tensors of integers [B, ...] whose rows that are not real become -100.
        kwargs: further arguments of `torch.utils.data.DataLoader`, such as `num_workers`; with
            these, `multiprocessing_context=worker_context()` in a plain loop beside a card.

    Raises:
        ValueError: for another kind of sampler, and for a data set of another size than it knows.
    """

    def __init__(
        self,
        dataset: Dataset[Any] | Sequence[Any],
        batches: BucketBatchSampler | None = None,
        collate_fn: Collate = pad_batch,
        *,
        batch_sampler: BucketBatchSampler | None = None,
        with_epoch: bool = False,
        label_names: Sequence[str] = ("labels",),
        **kwargs: Any,
    ) -> None:
        # For prediction, Lightning makes the loader anew. It passes the arguments of the first one,
        # and by name a batch sampler around the first one's (lightning/pytorch/utilities/data.py).
        batch_sampler = batches if batch_sampler is None else batch_sampler
        if batch_sampler is None or not hasattr(batch_sampler, "fills_last"):
            raise ValueError(
                "A BucketDataLoader takes its batches from a BucketBatchSampler, but got "
                f"{type(batch_sampler).__name__}. Give one as the second argument."
            )
        if not isinstance(dataset, _Batches):
            if isinstance(batch_sampler, BucketBatchSampler):  # and not Lightning's around it
                _check_length(dataset, batch_sampler)
            fills = batch_sampler.fills_last
            dataset = _Batches(dataset, collate_fn, with_epoch, tuple(label_names), fills)
        # A loader draws a seed for its workers. Drawn from torch's own generator, it would change
        # the dropout of a run that is resumed.
        self._owns_generator = kwargs.get("generator") is None
        if self._owns_generator:
            kwargs["generator"] = torch.Generator()
        super().__init__(dataset, batch_sampler=batch_sampler, collate_fn=_as_it_is, **kwargs)
        if isinstance(batch_sampler, BucketBatchSampler):
            batch_sampler._counts_itself = False
            # With a batch sampler, a DataLoader shows a SequentialSampler here. Lightning and
            # Fabric look for a DistributedSampler: they leave it alone and tell it the epoch.
            self.__dict__["sampler"] = batch_sampler

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if isinstance(self.sampler, BucketBatchSampler):
            self.sampler.progress.bind()
        return _CountedBatches(self)

    def _start(self) -> Iterator[Any]:
        """Starts the workers of an epoch."""
        if self._owns_generator and isinstance(self.sampler, BucketBatchSampler):
            seed, epoch = self.sampler.seed, self.sampler.progress.epoch
            self.generator.manual_seed((seed * 1_000_003 + epoch) % 2**63)
        return super().__iter__()

    def state_dict(self) -> dict[str, Any]:
        """Returns epoch and position (how many batches were taken), the same on every rank."""
        return self._bucket_sampler().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on after the last batch that was taken before the state was saved.

        Raises:
            ValueError: if the state was saved within an epoch whose batches would be others here.
        """
        self._bucket_sampler().load_state_dict(state_dict)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of the coming epoch; Lightning and Fabric call this on the sampler."""
        self._bucket_sampler().set_epoch(epoch)

    def _bucket_sampler(self) -> BucketBatchSampler:
        # Only the loader that Lightning makes for prediction has another, and it asks for no state.
        assert isinstance(self.sampler, BucketBatchSampler)
        return self.sampler


class _CountedBatches(Iterator[Any]):
    """Iterates over the batches, and tells the sampler how many were taken.

    It starts at the first batch and not before, since Lightning makes the iterator of an epoch
    before it says which epoch that is.
    """

    def __init__(self, loader: BucketDataLoader) -> None:
        self._loader = loader
        self._batches: Iterator[Any] | None = None
        self._position = 0

    def __next__(self) -> Any:
        sampler = self._loader.sampler
        if self._batches is None:
            if isinstance(sampler, BucketBatchSampler):
                self._position = sampler.progress.start
            self._batches = self._loader._start()
        batch = next(self._batches)
        self._position += 1
        if isinstance(sampler, BucketBatchSampler):
            sampler.progress.position = self._position
        return batch


class _Batches(Dataset[Any]):
    """A data set of whole batches, which pads each and fills it up."""

    def __init__(
        self,
        dataset: Dataset[Any] | Sequence[Any],
        collate: Collate,
        with_epoch: bool,
        label_names: tuple[str, ...],
        fills_last: bool,
    ) -> None:
        self.dataset, self.collate, self.with_epoch = dataset, collate, with_epoch
        self.label_names, self.fills_last = label_names, fills_last

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def __getitems__(self, batch: BucketBatch) -> Any:
        """Returns a batch; DataLoader calls this if a data set has it."""
        filled = [*batch, *[batch.filler] * (batch.size - len(batch))]
        keys: list[Any] = [(batch.epoch, index) for index in filled] if self.with_epoch else filled
        get_all = getattr(self.dataset, "__getitems__", None)
        samples = [self.dataset[key] for key in keys] if get_all is None else get_all(keys)
        made = self.collate(samples, batch.length)
        if not self.fills_last:
            return made
        return _mark(made, torch.arange(batch.size) < len(batch), self.label_names)


def _check_length(dataset: Any, batches: BucketBatchSampler) -> None:
    if hasattr(dataset, "__len__") and len(dataset) != batches.num_items:
        raise ValueError(
            f"The data set has {len(dataset)} samples, but the sampler was given the lengths of "
            f"{batches.num_items}. Give it one length for each sample."
        )


def _mark(batch: Any, is_real: Tensor, label_names: tuple[str, ...]) -> Any:
    """Adds `is_real` [B] to a batch, and removes the labels of rows that are not real."""
    if not isinstance(batch, MutableMapping):
        return (*batch, is_real) if isinstance(batch, (tuple, list)) else (batch, is_real)
    for name in label_names:
        value = batch.get(name)
        if isinstance(value, Tensor) and value.dtype in _SIGNED:
            rows = is_real.logical_not().view(-1, *[1] * (value.ndim - 1))
            batch[name] = value.masked_fill(rows, _NO_LABEL)
    batch["is_real"] = is_real
    return batch


def _as_it_is(batch: Any) -> Any:
    return batch


def worker_context() -> BaseContext:
    """Returns a context in which a DataLoader's workers start without a fork of this process.

    A process that holds a card must not be forked. Use it as `DataLoader(..., num_workers=4,
    multiprocessing_context=worker_context())`. A Trainer and Fabric set it by themselves. It works
    without a card, too.
    """
    from lightning_gaudi._core.workers.start import WorkerContext

    return WorkerContext()
