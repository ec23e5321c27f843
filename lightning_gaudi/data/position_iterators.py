"""Iterators of an ordinary DataLoader that tell a `LoaderPosition` what is drawn and taken.

A worker draws from random states of its own, one batch after the other, so that its next batch
depends on those before it. So each batch of a worker comes with a `Report`, which has the states
after the batch if they have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import BatchSampler, Sampler, SequentialSampler, get_worker_info
from torch.utils.data.dataloader import (
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from lightning_gaudi._core import host_random

if TYPE_CHECKING:
    from lightning_gaudi.data.position import LoaderPosition


class Plan(NamedTuple):
    """Says how an iterator that goes on is made."""

    num_passed: int | None = None
    """How many batches of indices were taken before; None for an epoch that begins."""
    first_worker: int = 0
    """The worker that makes the next batch."""
    before_epoch: Callable[[], None] | None = None
    """Is called when the workers have their seeds, before the order is drawn."""


class Indices:
    """A sampler that tells the position when an epoch's order is drawn."""

    def __init__(self, indices: Any, position: LoaderPosition, num_passed: int | None) -> None:
        self.indices, self.position, self.num_passed = indices, position, num_passed

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> _Drawn:
        return _Drawn(self)


class _Drawn(Iterator[Any]):
    """The indices of an epoch, which are drawn when they are first asked for."""

    def __init__(self, sampler: Indices) -> None:
        self._sampler = sampler
        self._iterator = iter(sampler.indices)
        self._has_begun = False

    def __next__(self) -> Any:
        if not self._has_begun:
            self.begin()
        return next(self._iterator)

    def begin(self) -> None:
        """Draws the order, and passes over what was taken before."""
        self._has_begun = True
        position = self._sampler.position
        num_passed, self._sampler.num_passed = self._sampler.num_passed, None
        if num_passed is None:
            position.note_drawn()
            return
        if position.start.drawn is not None:
            host_random.put(position.start.drawn)
        self._iterator = passed_over(self._sampler.indices, self._iterator, num_passed)


def passed_over(indices: Any, iterator: Iterator[Any], num_passed: int) -> Iterator[Any]:
    """Returns an iterator that starts behind what was taken, without making that again.

    Args:
        indices: a sampler, or torch's batch sampler around one.
        iterator: its iterator, which has given nothing yet.
        num_passed: how many indices, or batches of them, were taken.
    """
    # Exact types: a subclass may draw in its own way, and is passed over one by one.
    if type(indices) is BatchSampler:
        num_samples = num_passed * indices.batch_size
        rest = passed_over(indices.sampler, iter(indices.sampler), num_samples)
        return iter(BatchSampler(_Once(rest), indices.batch_size, indices.drop_last))
    if type(indices) is SequentialSampler:
        return iter(range(num_passed, len(indices)))
    next(islice(iterator, num_passed, num_passed), None)
    return iterator


class _Once(Sampler[Any]):
    """A sampler whose iterator has begun."""

    def __init__(self, rest: Iterator[Any]) -> None:
        self._rest = rest

    def __iter__(self) -> Iterator[Any]:
        return self._rest


class Single(_SingleProcessDataLoaderIter):
    """Torch's iterator without workers, which counts what is taken."""

    def __init__(self, loader: Any, position: LoaderPosition) -> None:
        self._position, self._has_order = position, position.has_order
        super().__init__(loader)

    def begin(self) -> None:
        """Draws the order now, and not at the first batch."""
        self._sampler_iter.begin()

    def _next_data(self) -> Any:
        before = None if self._has_order else host_random.take()
        try:
            data = super()._next_data()  # type: ignore[no-untyped-call]
        except StopIteration:
            self._position.end()
            raise
        # The order is known, so that nothing but the number is needed to go on.
        if before is None:
            self._position.count()
        else:
            self._position.note(None, before)
        return data


class Multiple(_MultiProcessingDataLoaderIter):
    """Torch's iterator with workers, which counts, and may begin with a later worker."""

    def __init__(self, loader: Any, position: LoaderPosition, plan: Plan) -> None:
        self._position, self._plan = position, plan
        super().__init__(loader)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            self._plan = Plan()
            self._position.renew()
        elif self._plan.before_epoch is not None:
            self._plan.before_epoch()
        super()._reset(loader, first_iter)

    def _try_put_index(self) -> None:
        # Before the first index is given out: the workers take turns from this one on.
        for _ in range(self._plan.first_worker):
            next(self._worker_queue_idx_cycle)
        self._plan = Plan()
        super()._try_put_index()

    def _next_data(self) -> Any:
        try:
            batch, report = super()._next_data()  # type: ignore[no-untyped-call]
        except StopIteration:
            self._position.end()
            raise
        self._position.note(report)
        return batch


class Report(NamedTuple):
    """Says where a worker is after a batch."""

    worker: int
    random: host_random.HostRandom | None
    """Its random states; None if it has drawn nothing since its last report."""
    data: Any
    """The state of its data set, if that has one."""


class Reporting:
    """A collate function that returns a report with each batch."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        """Wraps a loader's own function."""
        self.collate = collate
        self._last: host_random.HostRandom | None = None

    def __call__(self, samples: Any) -> tuple[Any, Report]:
        """Returns the batch of some samples, and the worker's report."""
        batch = self.collate(samples)
        info = get_worker_info()
        assert info is not None
        states = host_random.take()
        drawn = None if states == self._last else states
        self._last = states
        return batch, Report(info.id, drawn, state_of(info.dataset))


class Beginning:
    """A loader's `worker_init_fn` that lets a worker go on from the report of an earlier one."""

    def __init__(self, func: Callable[[int], None] | None, reports: Mapping[int, Report]) -> None:
        """Takes the reports, by worker; a worker without one begins anew."""
        self.func = func
        self._reports = reports

    def __call__(self, worker: int) -> None:
        """Is called in each worker when it begins."""
        if self.func is not None:
            self.func(worker)
        info, report = get_worker_info(), self._reports.get(worker)
        assert info is not None
        if report is None:
            return
        if report.random is not None:
            host_random.put(report.random)
        if report.data is not None:
            data: Any = info.dataset
            data.load_state_dict(report.data)


def state_of(thing: Any) -> Any:
    """Returns the state of a data set or sampler; None if it cannot save and load one."""
    if hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
        return thing.state_dict()
    return None
