"""The vendor's events: what is told, to whom, and how a release tells it."""

from __future__ import annotations

import pytest
import torch
from habana_frameworks.torch.utils.event_dispatcher import EventDispatcher, EventId

from tests.helpers.forked import fork_python

LAZY = {"PT_HPU_LAZY_MODE": "1"}


@pytest.fixture
def dispatcher():
    yield EventDispatcher.instance()
    EventDispatcher.instance().reset()


def _events(dispatcher, handle):
    found = []
    dispatcher.process(handle, found.append)
    return found


def test_there_is_one_dispatcher(dispatcher):
    assert EventDispatcher.instance() is dispatcher


def test_an_event_reaches_each_subscriber_once(dispatcher):
    first, second = (dispatcher.subscribe(EventId.CUSTOM_EVENT) for _ in range(2))
    dispatcher.publish(EventId.CUSTOM_EVENT, [("epoch", "1")])
    dispatcher.publish(EventId.MARK_STEP, [])
    assert _events(dispatcher, first) == [[("epoch", "1")]]
    assert _events(dispatcher, first) == []
    assert _events(dispatcher, second) == [[("epoch", "1")]]


def test_nothing_is_told_before_subscribing_or_after(dispatcher):
    dispatcher.publish(EventId.CUSTOM_EVENT, [("epoch", "1")])
    handle = dispatcher.subscribe(EventId.CUSTOM_EVENT)
    assert _events(dispatcher, handle) == []
    dispatcher.unsubscribe(handle)
    dispatcher.unsubscribe(handle)
    dispatcher.publish(EventId.CUSTOM_EVENT, [("epoch", "2")])
    assert _events(dispatcher, handle) == []


@pytest.mark.filterwarnings("default")
def test_a_compiled_graph_is_an_event(dispatcher):
    torch.compiler.reset()
    handle = dispatcher.subscribe(EventId.GRAPH_COMPILATION)
    compiled = torch.compile(lambda x: x.sin() + 2, backend="hpu_backend", dynamic=False)
    for size in (3, 3, 5):
        compiled(torch.ones(size, device="hpu"))
    events = [dict(event) for event in _events(dispatcher, handle)]
    assert [event["duration"] for event in events] == ["0", "0"]
    assert len({event["recipe"] for event in events}) == 2
    torch.compiler.reset()


def test_lazy_steps_tell_of_graphs_found_and_not():
    out = fork_python(
        """
        import torch
        from habana_frameworks.torch import core
        from habana_frameworks.torch.utils.event_dispatcher import EventDispatcher, EventId
        dispatcher = EventDispatcher.instance()
        ids = EventId.MARK_STEP, EventId.CACHE_MISS, EventId.CACHE_HIT, EventId.GRAPH_COMPILATION
        handles = [dispatcher.subscribe(event) for event in ids]
        for size in (3, 3, 3, 4):
            torch.ones(size, device="hpu").add(1)
            core.mark_step()
        for handle in handles:
            found = []
            dispatcher.process(handle, found.append)
            print(len(found))
        """,
        env=LAZY,
    ).stdout
    assert out.split() == ["4", "2", "2", "2"]


def test_release_1_20_calls_at_once_with_the_time():
    out = fork_python(
        """
        import torch
        from habana_frameworks.torch import core
        from habana_frameworks.torch.utils.event_dispatcher import EventDispatcher, EventId
        dispatcher = EventDispatcher.instance()
        def tell(time, params):
            print(time.year > 2000, dict(params)["recipe"])
        handle = dispatcher.subscribe(EventId.GRAPH_COMPILATION, tell)
        dispatcher.subscribe(EventId.PROCESS_EXIT, lambda time, params: print("end"))
        for size in (3, 3, 4):
            torch.ones(size, device="hpu").add(1)
            core.mark_step()
        dispatcher.unsubscribe(handle)
        torch.ones(5, device="hpu").add(1)
        core.mark_step()
        print(hasattr(EventId, "CTX_FINISH_BEFORE"), hasattr(dispatcher, "process"))
        """,
        env={"LIGHTNING_GAUDI_SIMULATE_RELEASE": "1.20"},
    ).stdout
    assert out.split("\n") == ["True graph_0", "True graph_1", "False False", "end", ""]
