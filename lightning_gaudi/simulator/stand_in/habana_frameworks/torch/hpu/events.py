"""Implements events: marks in a stream's work, and the time between them."""

from __future__ import annotations

import time

import torch

from ..._missing import missing
from ._lifecycle import init
from .streams import current_stream


class Event(torch.Event):
    """A mark in a stream's work.

    Args:
        enable_timing: Whether `elapsed_time` may be asked for.
    """

    def __new__(cls, enable_timing: bool = False) -> Event:  # noqa: D102 (see the class)
        init()
        self = super().__new__(cls, device="hpu", enable_timing=enable_timing)
        self._is_timed = enable_timing
        self._recorded_ns = None
        return self

    def record(self, stream: torch.Stream | None = None) -> None:
        """Puts the mark into `stream`, the current one by default."""
        super().record(current_stream() if stream is None else stream)
        self._recorded_ns = time.perf_counter_ns()

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Lets `stream`, the current one by default, wait until the mark is reached."""
        super().wait(current_stream() if stream is None else stream)

    def elapsed_time(self, end_event: Event) -> float:
        """Returns the milliseconds from this mark to a later one.

        Raises:
            RuntimeError: An event measures no time or was not recorded.
        """
        # torch's own method takes only exact torch.Events. The device works at once, so the host's
        # clock measures its work.
        for name, event in (("start", self), ("end", end_event)):
            if not event._is_timed or event._recorded_ns is None:
                raise RuntimeError(
                    f"elapsed_time: the {name} event has no time. Make both with "
                    "torch.hpu.Event(enable_timing=True) and record them."
                )
        return (end_event._recorded_ns - self._recorded_ns) / 1e6

    def __repr__(self) -> str:
        return f"<torch.hpu.Event device={self.device}>"


__getattr__ = missing(__name__)
