"""Publishes what the device does: graphs compiled and found again, steps, fallbacks.

Source: Intel Gaudi PyTorch bridge 1.24.0, `utils/event_dispatcher/csrc/bindings.cpp`; the order of
calls that `process` belongs to is that of `hpu/metrics/metrics.py` there.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from datetime import datetime

from ...._missing import missing
from ...._release import release
from ... import _events
from ..._events import EventId, Handle, Params

__all__ = ["EventDispatcher", "EventId"]


class EventDispatcher:
    """Takes subscriptions to events and publishes events; there is one, `instance()`."""

    _instance: EventDispatcher | None = None

    @staticmethod
    def instance() -> EventDispatcher:
        """Returns the dispatcher of this process."""
        if EventDispatcher._instance is None:
            EventDispatcher._instance = EventDispatcher()
        return EventDispatcher._instance

    if release().number >= 122:

        def subscribe(self, topic: EventId) -> Handle:
            """Keeps events of a kind from now on, until `process` asks for them."""
            return _subscribed(Handle(topic, None))

        def process(self, handle: Handle, callback: Callable[[Params], object]) -> None:
            """Calls `callback` with the parameters of each event since the last call."""
            _events.look()
            while handle.waiting:
                callback(handle.waiting.popleft())

        def reset(self) -> None:
            """Ends all subscriptions."""
            _events.unsubscribe_all()

    else:

        def subscribe(
            self, topic: EventId, callback: Callable[[datetime, Params], object]
        ) -> Handle:
            """Calls `callback` with the time and the parameters of each event of a kind."""
            return _subscribed(Handle(topic, callback))

    def unsubscribe(self, handle: Handle) -> None:
        """Ends a subscription."""
        _events.unsubscribe(handle)

    def publish(self, topic: EventId, params: Params, timestamp: datetime | None = None) -> None:
        """Publishes an event, such as a CUSTOM_EVENT of the program's own.

        Args:
            topic: The kind of the event.
            params: Its parameters, as pairs of strings.
            timestamp: Its time, now by default. Later releases than 1.20 take none.
        """
        _events.publish(topic, params, timestamp)


def _subscribed(handle: Handle) -> Handle:
    _events.subscribe(handle)
    return handle


atexit.register(_events.publish, EventId.PROCESS_EXIT, [])

__getattr__ = missing(__name__)
