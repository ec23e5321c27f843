"""How long a rank takes for what it does by itself, which is what ranks may differ in.

A step takes all ranks as long as the slowest: the others wait for it. So what is measured ends
where backward begins, and with it the reductions, and what a rank has noted that it waited for
others in is taken off. On the host that is from the end of a step on: hooks, the next batch, and
launching the forward pass. On the card it is the forward pass, between two events, of a few steps;
they are read when losses have been, at the end of an interval, and so nobody waits for them. Who
watches the ranks compares them: see `slow_ranks`.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from lightning_gaudi._core import progress, vendor

_NUM_EVENTS = 5
"""In so many steps of an interval, the last ones, the card is timed."""


class Pace:
    """Measures this rank; `RunGuard` tells it what happens.

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
        """The forward pass begins."""
        if self._since is None:
            self._begin_interval()
        self._event = self._mark()

    def loss(self) -> None:
        """Backward is about to run."""
        if self._since is not None:
            waited_s = progress.waited_s() - self._waited_s
            self._host.append(max(0.0, time.monotonic() - self._since - waited_s))
            self._since = None
        if self._event is not None:
            self._events.append((self._event, self._mark()))
            self._event = None

    def step(self, number: int) -> None:
        """A step has ended; at the end of an interval what was measured is told to the watchdog."""
        self._num_left = -number % self._run.steps_per_look
        if not self._num_left and self._host:
            progress.note_pace(median(self._host), self._of_card())
            self._host, self._events = [], []
        self._begin_interval()

    def _begin_interval(self) -> None:
        self._since, self._waited_s = time.monotonic(), progress.waited_s()

    def _mark(self) -> Any:
        """Puts an event into the stream, which costs nothing but a launch; None where none is."""
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
