"""Measures the time of training without the pauses between its steps."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Between", "TrainingClock"]


class Between(IntEnum):
    """The reason for a pause between two steps; the greatest of several counts."""

    DATA = 0
    """Waiting for the next batch, which counts."""
    MORE = 1
    """The end of an epoch, or the device catching up while metrics are read, which counts."""
    LOGGING = 2
    STANDSTILL = 3
    """Validating or saving."""


class TrainingClock:
    """Adds up steps and the pauses before them, from times that the caller measures on the host.

    A pause with logging, validation or saving also contains the wait for the next batch. So it
    counts as long as the mean pause that contains nothing but that wait. If every step logs, there
    is no such pause, and pauses with logging count in full.
    """

    def __init__(self) -> None:
        self._busy_s = 0.0
        self._pauses_s = dict.fromkeys(Between, 0.0)
        self._num_pauses = dict.fromkeys(Between, 0)
        self._start: float | None = None
        self._end: float | None = None
        self._between = Between.STANDSTILL

    @property
    def seconds(self) -> float:
        """The time of the steps that were counted."""
        usual = Between.DATA if self._num_pauses[Between.DATA] else Between.LOGGING
        mean = self._pauses_s[usual] / max(1, self._num_pauses[usual])
        num_replaced = self._num_pauses[Between.LOGGING] + self._num_pauses[Between.STANDSTILL]
        counted = self._pauses_s[Between.DATA] + self._pauses_s[Between.MORE]
        return self._busy_s + counted + num_replaced * mean

    def note(self, between: Between) -> None:
        """Notes a reason for the pause before the next step."""
        self._between = max(self._between, between)

    def start_step(self, now: float) -> None:
        """Notes that a step begins.

        Args:
            now: In seconds, from any fixed time on.
        """
        self._start = now

    def end_step(self, now: float, *, counts: bool) -> None:
        """Notes that the step ends; the pause is a wait for data, unless `note` says otherwise.

        Args:
            now: In seconds, as before.
            counts: Whether the step, and the pause before it, are to be added.
        """
        if counts and self._start is not None:
            self._busy_s += now - self._start
            pause = 0.0 if self._end is None else self._start - self._end
            self._pauses_s[self._between] += pause
            self._num_pauses[self._between] += 1
        self._end, self._between = now, Between.DATA
