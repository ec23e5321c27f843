"""Keeps where an ordinary DataLoader is in its epoch, so that a run goes on exactly there.

The order of an epoch comes from the random states at its start. These are kept, and the batches
that were taken are counted. To go on, the order is drawn again, and what was taken is passed over
without loading it. What workers draw is in their reports; see `position_iterators`.

All of this happens on the host, and the data set is not asked again for a batch that was taken.
"""

from __future__ import annotations

import copy
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from lightning_gaudi._core import host_random
from lightning_gaudi._core.host_random import HostRandom
from lightning_gaudi.data import loader_parts as parts
from lightning_gaudi.data.position_iterators import (
    Beginning,
    Indices,
    Multiple,
    Plan,
    Report,
    Reporting,
    Single,
    state_of,
)

__all__ = ["LoaderPosition"]

_NO_WORKER = -1
_MAX_BEHIND = 2  # a batch that Lightning has taken ahead, and one whose step has not ended


@dataclass
class _EpochStart:
    """Holds the random states from which the order of an epoch and its workers' seeds came."""

    created: HostRandom | None = None
    """The states when the iterator was made: they draw the workers' seed, and an order at once."""
    drawn: HostRandom | None = None
    """The states when the sampler was first asked in this epoch."""
    generators: list[torch.Tensor] = field(default_factory=list)
    """The states of the user's own generators."""
    samplers: list[Any] = field(default_factory=list)
    """The states of samplers that have one."""
    is_renewed: bool = False
    """Whether the workers are those of the epoch before (`persistent_workers`)."""


class _Taken:
    """Counts the batches that were taken of an epoch, and keeps the state before the last ones."""

    def __init__(self, number: int = 0, last_worker: int = _NO_WORKER) -> None:
        self.number = number
        self.last_worker = last_worker
        self.is_over = False
        """Whether the epoch's iterator has ended."""
        self._steps: deque[_Step] = deque(maxlen=_MAX_BEHIND)

    def note(self, report: Report, reports: dict[int, Report], before: HostRandom | None) -> None:
        """Counts a batch, and keeps the report of the worker that made it."""
        known = reports.get(report.worker)
        self._steps.append(_Step(self.last_worker, report.worker, known, before))
        if report.random is None and known is not None:
            report = report._replace(random=known.random)
        reports[report.worker] = report
        self.last_worker = report.worker
        self.number += 1

    def before(
        self, behind: int, reports: Mapping[int, Report]
    ) -> tuple[int, int, dict[int, Report], HostRandom | None]:
        """Returns the state some batches ago: number taken, last worker, reports, random states."""
        last, found, states = self.last_worker, dict(reports), None
        undone = list(self._steps)[-behind:] if behind else []
        for step in reversed(undone):
            last, states = step.last_worker, step.before
            if step.known is not None:
                found[step.worker] = step.known
            else:
                found.pop(step.worker, None)
        return max(0, self.number - behind), last, found, states


class LoaderPosition:
    """Counts what is taken from a DataLoader, and lets it go on where another one was.

    Args:
        loader: a loader without a `state_dict` of its own, whose `_get_iterator` the caller
            replaces by `make_iterator`.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = weakref.ref(loader)
        self._saved: Mapping[str, Any] | None = None
        """The state that the next iterator goes on from."""
        self._is_within = True
        """Whether it goes on within the epoch."""
        self.start = _EpochStart()
        self.taken = _Taken()
        # Not a part of `taken`, since the reports of a worker that stays outlive the epoch.
        self._reports: dict[int, Report] = {}

    @property
    def loader(self) -> DataLoader[Any]:
        """The loader, which the caller keeps alive."""
        loader = self._loader()
        assert loader is not None
        return loader

    @property
    def has_order(self) -> bool:
        """Whether the next samples are known without loading them; see `loader_parts`."""
        return parts.has_order(self.loader)

    @property
    def reason_against(self) -> str | None:
        """Why this loader cannot go on exactly, in words for a user; None if it can."""
        return parts.reason_against(self.loader)

    def state_dict(self, behind: int = 0) -> dict[str, Any]:
        """Returns where this process's loader is, as plain data and CPU tensors.

        Args:
            behind: how many of the last batches do not count, since they will be taken again.
        """
        loader = self.loader
        start = self.start
        taken, last, reports, before_next = self.taken.before(behind, self._reports)
        return {
            "taken": taken,
            "renewed": start.is_renewed,
            "created": _saved(start.created),
            "drawn": _saved(start.drawn),
            "before_next": _saved(before_next),
            "generators": start.generators,
            "generators_now": [each.get_state() for each in parts.generators(loader)],
            "samplers": start.samplers,
            "samplers_now": self._states_of_samplers(),
            "seeds": [each.seed for each in parts.distributed(loader)],
            "num_workers": loader.num_workers,
            "last_worker": last,
            "workers": {
                number: {"random": _saved(each.random), "data": each.data}
                for number, each in reports.items()
            },
            "data": None if loader.num_workers else state_of(loader.dataset),
        }

    @staticmethod
    def of_any_rank(saved: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the part of a `state_dict` that also holds for a different number of ranks."""
        if "created" not in saved:
            return dict(saved)
        own: dict[str, Any] = {
            "created": None,
            "drawn": None,
            "before_next": None,
            "workers": {},
            "data": None,
        }
        return {**saved, **own, "generators": [], "generators_now": [], "num_workers": None}

    def load_state_dict(self, saved: Mapping[str, Any], *, within_epoch: bool) -> None:
        """Lets the next iterator go on from a `state_dict`.

        Args:
            saved: the state that `state_dict` returned.
            within_epoch: whether the epoch goes on. Otherwise another one begins, in which only
                workers that stay (`persistent_workers`) go on.
        """
        self._saved = saved if within_epoch or self.loader.persistent_workers else None
        self._is_within = within_epoch
        for sampler, seed in zip(parts.distributed(self.loader), saved["seeds"], strict=False):
            sampler.seed = seed  # the seed of the run that goes on, whatever this one was given
        if not within_epoch:
            self._set_generators(saved["generators_now"])
            self._load_own(saved["samplers_now"], saved["data"])

    def make_iterator(self) -> Iterator[Any]:
        """Makes the iterator of an epoch, which counts, and goes on if a state was loaded.

        It takes the place of `DataLoader._get_iterator`.
        """
        saved, self._saved = self._saved, None
        if saved is None:
            self._begin()
            return self._make(Plan())
        now = host_random.take()
        self._take_up(saved)
        if not self._is_within:
            # The workers start as they did then, and the order is drawn as it would be without a
            # resume: from the random states of now.
            host_random.put(self.start.created or now)
            return self._make(Plan(before_epoch=lambda: self._renew(now)))
        try:
            self._rewind(saved)
            plan = Plan(
                num_passed=saved["taken"] if self.has_order else 0,
                first_worker=(self.taken.last_worker + 1) % max(1, self.loader.num_workers),
                before_epoch=self._undo_seed if self.start.is_renewed else None,
            )
            iterator = self._make(plan)
            if isinstance(iterator, Single):
                iterator.begin()
        finally:
            # Lightning takes a batch ahead if it does not know how many there are. The states
            # before that batch are those that the run goes on with.
            host_random.put(_loaded(saved["before_next"]) or now)
        self._set_generators(saved["generators_now"])
        return iterator

    def note(self, report: Report | None, before: HostRandom | None = None) -> None:
        """Counts a batch that is being taken.

        Args:
            report: the report of the worker that made it; None if this process made it.
            before: the random states before this process made it.
        """
        if report is None:
            report = Report(_NO_WORKER, None, self._state_of_data())
        self.taken.note(report, self._reports, before)

    def count(self) -> None:
        """Counts a batch that this process makes, if no random states are needed to repeat it."""
        self.taken.number += 1

    def end(self) -> None:
        """Notes that the iterator has ended."""
        self.taken.is_over = True

    def note_drawn(self) -> None:
        """Keeps the random states from which the sampler draws the order of the epoch."""
        self.start.drawn = host_random.take()

    def renew(self) -> None:
        """Notes that workers which stay begin another epoch."""
        self._begin_epoch(self.start.created, is_renewed=True)

    def _begin(self) -> None:
        self._reports = {}
        self._begin_epoch(host_random.take(), is_renewed=False)

    def _begin_epoch(self, created: HostRandom | None, *, is_renewed: bool) -> None:
        generators = [each.get_state() for each in parts.generators(self.loader)]
        samplers = self._states_of_samplers()
        self.start = _EpochStart(created, None, generators, samplers, is_renewed)
        self.taken = _Taken()

    def _renew(self, now: HostRandom) -> None:
        host_random.put(now)
        self.renew()

    def _take_up(self, saved: Mapping[str, Any]) -> None:
        self.start = _EpochStart(
            _loaded(saved["created"]),
            _loaded(saved["drawn"]),
            saved["generators"],
            saved["samplers"],
            saved["renewed"],
        )
        self.taken = _Taken(saved["taken"], saved["last_worker"])
        self._reports = {}
        if saved["num_workers"] == self.loader.num_workers:
            self._reports = {
                number: Report(number, _loaded(each["random"]), each["data"])
                for number, each in saved["workers"].items()
            }

    def _rewind(self, saved: Mapping[str, Any]) -> None:
        """Puts back the states from when the iterator was made, for as long as it is made again."""
        if self.start.created is not None:
            host_random.put(self.start.created)
        self._set_generators(self.start.generators)
        own = saved["workers"].get(_NO_WORKER)
        data = saved["data"] if own is None or own["data"] is None else own["data"]
        self._load_own(self.start.samplers, data)

    def _load_own(self, samplers: list[Any], data: Any) -> None:
        """Loads the states that samplers and data set have saved, if they have any."""
        loader = self.loader
        for thing, state in zip(
            (*parts.samplers(loader), loader.dataset), (*samplers, data), strict=False
        ):
            if state is not None and hasattr(thing, "load_state_dict"):
                thing.load_state_dict(state)

    def _make(self, plan: Plan) -> Single | Multiple:
        loader = self.loader
        watched = copy.copy(loader)
        index = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        # Set in the `__dict__`, since DataLoader refuses to change it after the start. That does
        # no harm here: this is a copy, and the new object gives the same indices.
        watched.__dict__[index] = Indices(getattr(loader, index), self, plan.num_passed)
        if not loader.num_workers:
            return Single(watched, self)
        watched.collate_fn = Reporting(loader.collate_fn)
        watched.worker_init_fn = Beginning(loader.worker_init_fn, dict(self._reports))
        return Multiple(watched, self, plan)

    def _undo_seed(self) -> None:
        """Undoes the draw of the workers' seed: workers that stayed had theirs already."""
        self._set_generators(self.start.generators)

    def _set_generators(self, states: list[torch.Tensor]) -> None:
        for generator, state in zip(parts.generators(self.loader), states, strict=False):
            generator.set_state(state)

    def _states_of_samplers(self) -> list[Any]:
        return [state_of(each) for each in parts.samplers(self.loader)]

    def _state_of_data(self) -> Any:
        return state_of(self.loader.dataset)


class _Step(NamedTuple):
    """Says how things were before a batch was taken."""

    last_worker: int
    worker: int
    """The worker that made the batch."""
    known: Report | None
    """The report of that worker before the batch."""
    before: HostRandom | None


def _saved(states: HostRandom | None) -> dict[str, torch.Tensor] | None:
    return None if states is None else host_random.to_tensors(states)


def _loaded(saved: Mapping[str, torch.Tensor] | None) -> HostRandom | None:
    return None if saved is None else host_random.from_tensors(saved)
