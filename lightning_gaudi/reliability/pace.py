"""Measures how long a rank takes for what it does by itself, in which ranks may differ.

A whole step takes every rank as long as the slowest one, since the others wait for it. So the
measurement ends where backward and its reductions begin, and the time that a rank has noted as
waiting for others is subtracted. On the host it starts at the end of a step, and covers hooks, the
next batch, and the launches of the forward pass. On the card it covers the forward pass of a few
steps, between two events. These are read at the end of an interval, after the losses, so that
nobody waits for them. The watching process compares the ranks; see `slow_ranks`.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from lightning_gaudi._core import progress, vendor

_NUM_EVENTS = 5
"""The number of steps, the last ones of an interval, in which the card is timed."""


class Pace:
    """Measures this rank; `RunGuard` calls it at the events of a run.

    Args:
        run: The strategy, a `guard.Run`.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._since: float | None = None
        self._waited_s = 0.0
        self._host: list[float] = []
        self._event: Any = None
        self._events: list[tuple[Any, Any]] = []
        self._num_left = 0

    def begin(self) -> None:
        """Forgets an earlier fit."""
        self._since, self._event = None, None
        self._host, self._events = [], []

    def batch(self) -> None:
        """Is called when the forward pass begins."""
        if self._since is None:
            self._begin_interval()
        self._event = self._mark()

    def loss(self) -> None:
        """Is called when backward is about to run."""
        if self._since is not None:
            waited_s = progress.waited_s() - self._waited_s
            self._host.append(max(0.0, time.monotonic() - self._since - waited_s))
            self._since = None
        if self._event is not None:
            self._events.append((self._event, self._mark()))
            self._event = None

    def step(self, number: int) -> None:
        """Is called when a step has ended; the end of an interval passes the medians on."""
        self._num_left = -number % self._run.steps_per_look
        if not self._num_left and self._host:
            progress.note_pace(median(self._host), self._of_card())
            self._host, self._events = [], []
        self._begin_interval()

    def _begin_interval(self) -> None:
        self._since, self._waited_s = time.monotonic(), progress.waited_s()

    def _mark(self) -> Any:
        """Puts an event into the stream, which costs one launch; None if this step is not timed."""
        if self._num_left > _NUM_EVENTS or vendor.is_lazy() or not progress.is_watched():
            return None
        return vendor.record_event()

    def _of_card(self) -> float:
        found = [
            begin.elapsed_time(end) / 1000
            for begin, end in self._events
            if end is not None and end.query()
        ]
        return median(found) if found else 0.0
