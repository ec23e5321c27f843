"""Makes batches whose samples share a bucket, the same on all ranks, in a resumable order.

Shapes: B samples in a batch of one rank.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch.distributed
from torch.utils.data import DistributedSampler

from lightning_gaudi.data.buckets import IntArray, Lengths, bucket_of_each, check_positive
from lightning_gaudi.data.large_order import BucketIndex, LargeOrder

__all__ = ["BucketBatch", "BucketBatchSampler", "TooFewSamplesError"]

PLANNED_SAMPLES = 2**16
"""The most samples whose epoch is planned at its start, in milliseconds.

With more of them, each batch is computed by itself; see `large_order`."""


class BucketBatch(list[int]):
    """Holds the indices of the samples of one batch on one rank, and the shape that they get.

    It holds B indices, except where a batch is filled up in evaluation. There it holds only those
    of the real samples, and none at all on some ranks.

    Attributes:
        length: tokens that each sample is padded to: the boundary of the bucket.
        size: rows of the batch (B).
        filler: index of a sample of this bucket that may stand in a row which is not real.
        epoch: the epoch the batch belongs to.
    """

    def __init__(
        self, indices: Iterable[int], *, length: int, size: int, filler: int, epoch: int
    ) -> None:
        super().__init__(indices)
        self.length, self.size, self.filler, self.epoch = length, size, filler, epoch


class TooFewSamplesError(ValueError):
    """There are not enough samples for one batch on each rank, or for all batches of a step.

    Args:
        what: What is wrong, and what was given.
        remedy: What to do; who has other names for these settings says it in them.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what} {remedy}")
        self.what = what


class BucketBatchSampler(DistributedSampler[BucketBatch]):
    """Makes batches of one bucket each; all ranks have equally many, and the same bucket in a step.

    In training each epoch has another order. Samples that do not fill a batch of their bucket join
    the next larger one. A few samples, fewer than a batch on each rank, fill no batch at all; in
    each epoch these are different ones. In evaluation each sample comes exactly once, the largest
    bucket first, and the very last batch is filled up.

    Give it to a `BucketDataLoader`, which counts the batches that were used and not those that
    workers fetched ahead, and fills up the last one. With torch's own `DataLoader(batch_sampler=)`
    its `state_dict` is right without workers only, and the last batch stays short.

    Args:
        lengths: [number of samples], the number of tokens of each, known by index.
        boundaries: ascending: what each bucket pads to. See `optimal_buckets`.
        batch_size: samples of a batch on each rank (B).
        shuffle: whether each epoch has another order (training), or the same one (evaluation).
        seed: the seed of the order; the same on all ranks.
        num_ranks: processes that share the samples. None asks torch.distributed when the batches
            are asked for, so the sampler may be made before the ranks are connected. Give it where
            ranks share samples otherwise, as under tensor parallelism.
        rank: the number of this process among them; None asks torch.distributed, too.
        drop_last: whether to leave out what does not fill a batch on every rank, rather than fill
            it up. Default: as `shuffle`.
        multiple_of: with drop_last, an epoch has a multiple of so many batches. Pass the number of
            batches whose gradients are accumulated: Lightning would end the epoch with a step on
            fewer of them, whose gradient is too small.

    Raises:
        ValueError: for a sample longer than the last boundary, boundaries that do not ascend,
            no lengths, and sizes below one. When batches are asked for, also for data that do not
            fill a single batch.
    """

    # Lightning replaces any sampler that is no DistributedSampler, and nothing else is used of this
    # base. `drop_last` must not be an attribute: for prediction, Lightning would take it and
    # batch_size to build another batch sampler (lightning/pytorch/utilities/data.py).
    def __init__(
        self,
        lengths: Lengths,
        boundaries: Sequence[int],
        batch_size: int,
        *,
        shuffle: bool,
        seed: int = 0,
        num_ranks: int | None = None,
        rank: int | None = None,
        drop_last: bool | None = None,
        multiple_of: int = 1,
    ) -> None:
        check_positive(batch_size=batch_size, multiple_of=multiple_of)
        if (num_ranks is None) != (rank is None):
            raise ValueError(
                f"num_ranks and rank go together, but are {num_ranks} and {rank}. "
                "Give both, or none to ask torch.distributed."
            )
        if num_ranks is not None and rank is not None and not 0 <= rank < num_ranks:
            raise ValueError(f"rank must be 0 to {num_ranks - 1} (num_ranks - 1), but is {rank}.")
        self.boundaries = [int(boundary) for boundary in boundaries]
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed
        self._bucket_of = bucket_of_each(lengths, self.boundaries)
        is_large = len(self._bucket_of) > PLANNED_SAMPLES
        self._index = BucketIndex(self._bucket_of, len(self.boundaries)) if is_large else None
        self._identity = self._describe_samples()
        self._num_ranks, self._rank = num_ranks, rank
        self.fills_last = not (shuffle if drop_last is None else drop_last)
        self.multiple_of = 1 if self.fills_last else multiple_of
        self._counts_itself = True  # until a BucketDataLoader does, which knows what was used
        self.progress = EpochProgress()
        if num_ranks is not None:
            self._check_size(num_ranks)

    @property
    def num_items(self) -> int:
        """The number of samples of the data set, which the ranks share."""
        return len(self._bucket_of)

    def __len__(self) -> int:
        """Returns the number of batches of an epoch on each rank."""
        num_ranks, _ = self._ranks()
        self._check_size(num_ranks)
        per_step = self.batch_size * num_ranks
        if self.fills_last:
            return -(-self.num_items // per_step)
        return self.num_items // (per_step * self.multiple_of) * self.multiple_of

    def __iter__(self) -> Iterator[BucketBatch]:
        num_ranks, rank = self._ranks()
        self._check_size(num_ranks)
        epoch, start = self.progress.epoch, self.progress.begin()
        batches = self._batches(epoch, start, rank, num_ranks)
        for step, (indices, bucket, first) in enumerate(batches, start):
            if self._counts_itself:
                self.progress.position = step + 1
            yield BucketBatch(
                indices,
                length=self.boundaries[bucket],
                size=self.batch_size,
                filler=first,
                epoch=epoch,
            )

    def _batches(
        self, epoch: int, start: int, rank: int, num_ranks: int
    ) -> Iterator[tuple[list[int], int, int]]:
        """Yields this rank's indices, their bucket, and one sample of it that all ranks know."""
        if self._index is not None:
            taken = self.batch_size * num_ranks * self.multiple_of
            num_left_out = 0 if self.fills_last else self.num_items % taken
            drawn = (self.seed, epoch) if self.shuffle else None
            order = LargeOrder(self._index, self.batch_size, (rank, num_ranks), num_left_out, drawn)
            yield from order.batches(start)
            return
        planned, buckets = self._plan(epoch, num_ranks)
        for step in range(start, len(planned)):
            row = planned[step]
            mine = row[rank::num_ranks]
            yield mine[mine >= 0].tolist(), int(buckets[step]), int(row[0])

    def _plan(self, epoch: int, num_ranks: int) -> tuple[IntArray, IntArray]:
        """Plans an epoch for all ranks.

        Returns:
            [steps, B * num_ranks], the indices of the samples, followed by -1 where a batch is
            filled up; and [steps], the bucket of each step.
        """
        per_step = self.batch_size * num_ranks
        rng = np.random.default_rng((self.seed, epoch)) if self.shuffle else None
        total = self.num_items
        items = np.arange(total) if rng is None else rng.permutation(total)
        if not self.fills_last:
            items = items[: total - total % (per_step * self.multiple_of)]
        # The largest bucket comes first. So a batch across a boundary is padded to the larger one,
        # and the batch that must be filled up is among the cheapest.
        items = items[np.argsort(-self._bucket_of[items], kind="stable")]
        filled = np.full(-(-len(items) // per_step) * per_step, -1)
        filled[: len(items)] = items
        order = filled.reshape(-1, per_step)
        # With a single bucket the steps are in random order anyway.
        if rng is not None and len(self.boundaries) > 1:
            order = rng.permutation(order)
        return order, self._bucket_of[order[:, 0]]

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of the coming epoch; Lightning calls this.

        After `load_state_dict` what is left of the loaded epoch comes first, whatever its number.
        """
        self.progress.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Returns the epoch, how many of its batches were taken, and what decides their order."""
        return {
            "epoch": self.progress.epoch,
            "position": self.progress.position,
            "num_batches": len(self),
            "order": self._order(),
        }

    def _order(self) -> dict[str, Any]:
        """Returns what the batches of an epoch depend on, the same on all ranks."""
        return {
            **self._identity,
            "batch_size": self.batch_size,
            "num_ranks": self._ranks()[0],
            "shuffle": self.shuffle,
            "seed": self.seed,
            "drop_last": not self.fills_last,
            "multiple_of": self.multiple_of,
        }

    def _describe_samples(self) -> dict[str, Any]:
        """Returns which samples there are, as far as their buckets tell, and how they are drawn.

        It looks at all of them, so it is called once.
        """
        if self._index is not None:
            counts = self._index.counts
            more = {"how batches are drawn": "each by itself"}
            checksum = zlib.crc32(self._bucket_of.data)
        else:
            counts, more = np.bincount(self._bucket_of, minlength=len(self.boundaries)), {}
            checksum = zlib.crc32(self._bucket_of.astype(np.int16).tobytes())
        return {
            "samples in each bucket": dict(zip(self.boundaries, counts.tolist(), strict=True)),
            "checksum of their buckets": checksum,
            **more,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on after the last batch that was handed out before the state was saved.

        Raises:
            ValueError: if the state was saved within an epoch whose batches would be others here.
        """
        epoch, position = state_dict["epoch"], state_dict["position"]
        saved, current, num_batches = state_dict["order"], self._order(), len(self)
        is_finished = position >= state_dict["num_batches"]
        if position > 0 and not is_finished and saved != current:
            changed = [
                f"{name} was {saved.get(name)} and is {value}"
                for name, value in current.items()
                if saved.get(name) != value
            ]
            raise ValueError(
                f"The checkpoint was saved after batch {position} of epoch {epoch}, but the "
                f"batches are not the same any more: {'; '.join(changed)}. Resume with the same "
                "data and settings, or load the weights only to start a new run."
            )
        self.progress.load(epoch, num_batches if is_finished else position, num_batches)

    def _ranks(self) -> tuple[int, int]:
        """Returns the number of ranks, and the number of this one."""
        if self._num_ranks is not None and self._rank is not None:
            return self._num_ranks, self._rank
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_world_size(), torch.distributed.get_rank()
        return 1, 0

    def _check_size(self, num_ranks: int) -> None:
        per_step = self.batch_size * num_ranks * self.multiple_of
        if not self.fills_last and self.num_items < per_step:
            each = f", {self.multiple_of} of each" if self.multiple_of > 1 else ""
            raise TooFewSamplesError(
                f"The data have {self.num_items:,} sample(s), but a step takes {per_step:,} "
                f"(batches of {self.batch_size} on {num_ranks} rank(s){each}).",
                "Use more data, a smaller batch, fewer ranks or fewer batches a step (multiple_of, "
                "accumulate_grad_batches), or drop_last=False.",
            )


class EpochProgress:
    """Counts epochs and batches, and resumes, whether the Trainer or Fabric names the epochs.

    Attributes:
        epoch: the epoch, which the order of the batches depends on.
        position: the number of batches of the epoch that were taken.
        start: the batch at which the next iteration starts: 0, except once after `load`.
    """

    def __init__(self) -> None:
        self.epoch = self.position = self.start = 0
        self._named = 0
        """The number that `set_epoch` was last given."""
        self._offset = 0
        """The difference from that number to `epoch`."""
        self._num_batches = 0
        """The number of batches of an epoch; known after `load`."""
        self._is_resuming = False
        """Whether a state was loaded, and its epoch is not named yet."""
        self._is_bound = False
        """Whether an iterator was made for that epoch before it was named."""
        self._may_be_cut = False
        """Whether the Trainer may take one batch of the next epoch for a whole epoch."""

    def load(self, epoch: int, position: int, num_batches: int) -> None:
        """Goes on with batch `position` of an epoch of `num_batches`."""
        self.epoch, self.start, self.position = epoch, position, position
        self._num_batches, self._offset = num_batches, 0
        self._is_resuming, self._is_bound, self._may_be_cut = True, False, False

    def bind(self) -> None:
        """Is called when an iterator is made; a Trainer that resumes names the epoch after that."""
        self._is_bound = self._is_resuming

    def begin(self) -> int:
        """Returns the number of the batch with which an iteration starts."""
        start, self.start = self.start, 0
        return start

    def set_epoch(self, number: int) -> None:
        """Names the coming epoch.

        The first call after `load` names the epoch that was loaded, if it has batches left, and
        further calls count from there: Fabric counts epochs from 0 in each run, and Lightning
        takes an epoch that `max_steps` cut short for a finished one.
        """
        if self._is_resuming:
            self._is_resuming = False
            is_finished = self.start >= self._num_batches and number != self.epoch
            self._offset = self.epoch + int(is_finished) - number
            self._may_be_cut = is_finished and self._is_bound
        elif number < self._named:  # a new run
            self._offset, self._may_be_cut = 0, False
        elif self._may_be_cut:
            # A Trainer with max_steps that is resumed at the end of an epoch takes one batch of the
            # next epoch, and then begins another one (lightning/pytorch/loops/
            # training_epoch_loop.py, `done`). The epoch goes on behind that batch. Delete this once
            # Lightning resets its count of batches there.
            self._may_be_cut = False
            if self.position == 1 < self._num_batches:
                self._offset, self.start = self.epoch - number, 1
        self._named = number
        if number + self._offset != self.epoch:
            self.epoch, self.start, self.position = number + self._offset, 0, 0
