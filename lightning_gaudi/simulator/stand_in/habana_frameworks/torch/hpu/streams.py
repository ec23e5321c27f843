"""Implements streams of the device; the simulated HPU runs at once, so their order always holds.

torch.compile does not trace these functions, as it cannot trace the vendor's, which call into a
library. A graph ends where they are called, as where FSDP gathers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._compile import _disable_dynamo as untraced  # does not import the compiler

from ..._missing import missing
from ..._release import is_lazy
from ._lifecycle import init
from ._utils import Device

is_lazy_mode = is_lazy()

_current: Stream | None = None
"""The object of the current stream: `hpu.graph` marks objects (`hpu/streams.py`, 1.24.0)."""


class Stream(torch.Stream):
    """A queue of work on the device.

    Args:
        device: Unused: a process has one device.
        priority: Unused: the device has one priority.
        **kwargs: `stream_id`, `device_index` and `device_type`, to refer to a stream that exists.
    """

    def __new__(  # noqa: D102 (see the class)
        cls, device: Device = None, priority: int = 0, **kwargs: Any
    ) -> Stream:
        init()
        if kwargs:
            return super().__new__(cls, **kwargs)
        return super().__new__(cls, device="hpu", priority=priority)

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Puts a mark, a new one by default, behind the work given so far, and returns it."""
        from .events import Event

        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: torch.Event) -> None:
        """Has later work wait until the mark is reached."""
        event.wait(self)

    @property
    def hpu_stream(self) -> int:
        """The stream's number."""
        return self.stream_id

    def id(self) -> int:
        """Returns the stream's number."""
        return self.stream_id

    def __repr__(self) -> str:
        return f"<torch.hpu.Stream device={self.device} hpu_stream={self.hpu_stream:#x}>"


class StreamContext:
    """Makes a stream current within a `with` block.

    Args:
        stream: The stream; None changes nothing.
    """

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: Stream | None = None

    @untraced
    def __enter__(self) -> None:
        if self.stream is not None:
            self._previous = current_stream()
            set_stream(self.stream)

    @untraced
    def __exit__(self, *exc_info: object) -> None:
        if self._previous is not None:
            set_stream(self._previous)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Makes `stream` current within a `with` block; None changes nothing."""
    return StreamContext(stream)


@untraced
def set_stream(stream: torch.Stream | None) -> None:
    """Makes `stream` current; None changes nothing."""
    global _current
    if stream is not None and stream.stream_id != current_stream().stream_id:
        _current = stream
        torch.accelerator.set_stream(stream)


@untraced
def current_stream(device: Device = None) -> Stream:
    """Returns the stream that work goes to, as the object that was made current."""
    global _current
    init()
    current = torch.accelerator.current_stream(torch.device("hpu", 0))
    if _current is None or _current.stream_id != current.stream_id:
        _current = _same(current.stream_id, current)
    return _current


@untraced
def default_stream(device: Device = None) -> Stream:
    """Returns the stream that work goes to unless another is made current."""
    init()
    return _same(0, torch.accelerator.current_stream(torch.device("hpu", 0)))


def _same(stream_id: int, like: torch.Stream) -> Stream:
    return Stream(stream_id=stream_id, device_index=like.device_index, device_type=like.device_type)


def get_stream_info(stream: torch.Stream) -> tuple[torch.device, int]:
    """Returns the stream's device and number."""
    return torch.device("hpu", stream.device_index), stream.stream_id


def record_stream(self: torch.Tensor, stream: torch.Stream) -> None:
    """Keeps the tensor's memory until `stream` has done the work given so far."""
    self.record_stream(stream)


__getattr__ = missing(__name__)
