"""Events: marks in a stream's work, and the time between them."""

from __future__ import annotations

import torch

from ._lifecycle import init
from .streams import current_stream


class Event(torch.Event):
    """A mark in a stream's work.

    Args:
        enable_timing: Whether `elapsed_time` may be asked for.
    """

    def __new__(cls, enable_timing: bool = False) -> Event:  # noqa: D102 (see the class)
        init()
        return super().__new__(cls, device="hpu", enable_timing=enable_timing)

    def record(self, stream: torch.Stream | None = None) -> None:
        """Put the mark into `stream`, the current one by default."""
        super().record(current_stream() if stream is None else stream)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Let `stream`, the current one by default, wait until the mark is reached."""
        super().wait(current_stream() if stream is None else stream)

    def __repr__(self) -> str:
        return f"<torch.hpu.Event device={self.device}>"
