"""Publishes events of the device to those who have subscribed to them.

The device counts and calls nobody, so its counts become events when somebody looks: at the end of a
step, when a graph is handed to `torch.compile`'s backend, and when events are processed.
"""

from __future__ import annotations

import enum
from collections import defaultdict, deque
from collections.abc import Callable
from datetime import datetime

from .._release import release
from ._binding import C
from ._counters import compiled_graphs

Params = list[tuple[str, str]]


class EventId(enum.Enum):
    """The topics of events."""

    GRAPH_COMPILATION = 0
    MARK_STEP = 1
    PROCESS_EXIT = 2
    DEVICE_ACQUIRED = 3
    CUSTOM_EVENT = 4
    MEMORY_DEFRAGMENTATION = 5
    CPU_FALLBACK = 6
    CACHE_HIT = 7
    CACHE_MISS = 8
    if release().number >= 122:
        CTX_FINISH_BEFORE = 9


class Handle:
    """A subscription, by which it can be ended.

    Args:
        topic: The topic of the events.
        callback: A function that is called at once; None keeps the events until they are processed.
    """

    def __init__(self, topic: EventId, callback: Callable[[datetime, Params], object] | None):
        self.topic = topic
        self.callback = callback
        self.waiting: deque[Params] = deque()


_handles: dict[EventId, list[Handle]] = defaultdict(list)
_seen: dict[str, int] = {}


def subscribe(handle: Handle) -> None:
    """Publishes events to a handle from now on."""
    # A look before it is added: what has happened so far is not told to it.
    look()
    _handles[handle.topic].append(handle)


def unsubscribe(handle: Handle) -> None:
    """Ends a subscription; a handle that is not subscribed changes nothing."""
    if handle in _handles[handle.topic]:
        _handles[handle.topic].remove(handle)


def unsubscribe_all() -> None:
    """Ends all subscriptions."""
    _handles.clear()


def publish(topic: EventId, params: Params, at: datetime | None = None) -> None:
    """Gives an event to all handles of its topic."""
    for handle in list(_handles[topic]):
        if handle.callback is None:
            handle.waiting.append(params)
        else:
            handle.callback(at or datetime.now(), params)


def on_mark_step() -> None:
    """Publishes a step's end and what it did, if there is any subscriber."""
    if any(_handles.values()):
        look()
        publish(EventId.MARK_STEP, [])


def look() -> None:
    """Publishes what the device has counted since the last look."""
    graphs = C.graph_stats()
    compiled = graphs["num_compilations"] + compiled_graphs.num_graphs
    for number in _new("compiled", compiled):
        publish(EventId.GRAPH_COMPILATION, [("duration", "0"), ("recipe", f"graph_{number}")])
    for number in _new("missed", graphs["num_compilations"]):
        publish(EventId.CACHE_MISS, [("recipe_id", f"graph_{number}")])
    for _ in _new("found", graphs["num_cache_hits"]):
        # The device does not count which graph was found.
        publish(EventId.CACHE_HIT, [("recipe_id", "graph")])
    for name, count in C.fallback_stats().items():
        for _ in _new(f"fallback {name}", count):
            publish(EventId.CPU_FALLBACK, [("op_name", name)])


def _new(key: str, count: int) -> range:
    """Returns the numbers that a counter has passed since the last look, none if it was reset."""
    before, _seen[key] = _seen.get(key, 0), count
    return range(before, count)
