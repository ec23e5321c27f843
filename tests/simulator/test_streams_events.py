"""Streams and events: names and times, because every operation ends before it returns."""

from __future__ import annotations

import threading
import time
from typing import Any

import _hpu_sim
import pytest
import torch


def test_current_stream_can_be_exchanged_and_put_back() -> None:
    default = torch.accelerator.current_stream()
    side = torch.Stream("hpu")
    assert side != default
    with side:
        assert torch.accelerator.current_stream() == side
    assert torch.accelerator.current_stream() == default


def test_new_streams_differ() -> None:
    assert torch.Stream("hpu") != torch.Stream("hpu")


def test_stream_has_always_finished() -> None:
    stream = torch.Stream("hpu")
    assert stream.query()
    stream.synchronize()
    stream.wait_stream(torch.accelerator.current_stream())


def test_elapsed_time_is_that_between_two_records() -> None:
    start, end = torch.Event("hpu", enable_timing=True), torch.Event("hpu", enable_timing=True)
    start.record()
    time.sleep(0.02)
    end.record()
    assert end.query()
    assert 20 <= start.elapsed_time(end) < 2000


def test_elapsed_time_needs_two_records() -> None:
    start, end = torch.Event("hpu", enable_timing=True), torch.Event("hpu", enable_timing=True)
    start.record()
    with pytest.raises((RuntimeError, ValueError), match="record"):
        start.elapsed_time(end)


def test_waiting_for_the_device_counts_as_a_host_sync() -> None:
    _hpu_sim.reset_counters()
    event = torch.Event("hpu")
    event.record()
    torch.Stream("hpu").synchronize()
    torch.accelerator.synchronize()
    event.synchronize()
    _hpu_sim.synchronize()
    assert _hpu_sim.host_syncs() == {"synchronize": 4}


def test_record_stream_is_accepted() -> None:
    tensor = torch.ones(2, device="hpu")
    tensor.record_stream(torch.Stream("hpu"))
    assert tensor.sum() == 2


def _forward_and_backward(seen: list[Any]) -> None:
    """Adds the stream of the forward, that of the backward, and the one after both."""
    side = torch.Stream("hpu")
    weight = torch.ones(2, device="hpu", requires_grad=True)
    with side:
        squares = weight.square()
        squares.register_hook(lambda gradient: seen.append(torch.accelerator.current_stream()))
    seen.append(side)
    squares.sum().backward()
    seen.append(torch.accelerator.current_stream())
    assert weight.grad.tolist() == [2.0, 2.0]


def test_backward_runs_on_the_stream_of_its_forward() -> None:
    seen: list[Any] = []
    _forward_and_backward(seen)
    default = torch.accelerator.current_stream()
    assert seen[0] != default
    assert seen == [seen[0], seen[0], default]


def test_backward_of_another_thread_runs_on_the_stream_of_its_forward() -> None:
    """Autograd's own thread for the device runs it then."""
    seen: list[Any] = []
    with torch.Stream("hpu"):  # this thread's stream, not that one's
        thread = threading.Thread(target=_forward_and_backward, args=(seen,))
        thread.start()
        thread.join()
    default = torch.accelerator.current_stream()
    assert seen[0] != default
    assert seen == [seen[0], seen[0], default]


def test_process_has_one_device_and_the_server_all() -> None:
    assert _hpu_sim.current_device() == 0
    _hpu_sim.set_device(0)
    assert torch.hpu.device_count() == _hpu_sim.device_count() == 8


@pytest.mark.parametrize("make", [lambda: _hpu_sim.set_device(3), lambda: torch.Stream("hpu:3")])
def test_another_card_is_refused(make: object) -> None:
    with pytest.raises(RuntimeError, match=r"hpu:3 does not exist.*one card, which is hpu:0"):
        make()  # type: ignore[operator]
