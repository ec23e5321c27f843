"""What the workers of a DataLoader tell of themselves with each batch, to go on from there later.

A worker draws from random states of its own, one batch after the other: the next batch depends on
those before it. So each batch comes with the states as they are after it, if they have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info

from .. import host_random


class Report(NamedTuple):
    """Where a worker is after a batch."""

    worker: int
    random: host_random.HostRandom | None
    """None where nothing was drawn since its last report."""
    data: Any
    """The state of its data set, where that has one."""


class Reporting:
    """A collate function that returns a report with each batch."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        """Reports beside a loader's own function."""
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
    """A loader's `worker_init_fn`, after which a worker goes on from the reports of another."""

    def __init__(self, func: Callable[[int], None] | None, reports: Mapping[int, Report]) -> None:
        """Goes on from reports, by worker; one that has none begins anew."""
        self.func = func
        self._reports = reports

    def __call__(self, worker: int) -> None:
        """Called in each worker as it begins."""
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
    """Returns the state of a data set or sampler that can be saved and loaded, else None."""
    if hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
        return thing.state_dict()
    return None
