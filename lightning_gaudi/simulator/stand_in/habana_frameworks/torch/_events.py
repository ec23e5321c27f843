"""Events of the device: who wants to know of them, and what has happened.

The device counts and calls nobody, so what it did becomes events when somebody looks: at the end of
a step, when a graph is handed to `torch.compile`'s backend, and when events are processed.
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
    """What can happen."""

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
    """A subscription, to end it with.

    Args:
        topic: What it is for.
        callback: Who is called at once; None keeps the events until they are processed.
    """

    def __init__(self, topic: EventId, callback: Callable[[datetime, Params], object] | None):
        self.topic = topic
        self.callback = callback
        self.waiting: deque[Params] = deque()


_handles: dict[EventId, list[Handle]] = defaultdict(list)
_seen: dict[str, int] = {}


def subscribe(handle: Handle) -> None:
    """Tells of events from now on; what happened before is not told."""
    look()
    _handles[handle.topic].append(handle)


def unsubscribe(handle: Handle) -> None:
    """Tells no more; a handle that is not subscribed changes nothing."""
    if handle in _handles[handle.topic]:
        _handles[handle.topic].remove(handle)


def unsubscribe_all() -> None:
    """Tells nobody any more."""
    _handles.clear()


def publish(topic: EventId, params: Params, at: datetime | None = None) -> None:
    """Tells everybody who wants to know."""
    for handle in list(_handles[topic]):
        if handle.callback is None:
            handle.waiting.append(params)
        else:
            handle.callback(at or datetime.now(), params)


def on_mark_step() -> None:
    """Tells of a step's end and of what it did; nothing without a subscriber."""
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
        publish(EventId.CACHE_HIT, [("recipe_id", "graph")])  # which one is not told apart
    for name, count in C.fallback_stats().items():
        for _ in _new(f"fallback {name}", count):
            publish(EventId.CPU_FALLBACK, [("op_name", name)])


def _new(key: str, count: int) -> range:
    """Returns the numbers that a counter has reached since the last look; none if it was reset."""
    before, _seen[key] = _seen.get(key, 0), count
    return range(before, count)
