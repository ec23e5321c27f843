"""Streams and events: names and times, because every operation ends before it returns."""

from __future__ import annotations

import time

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


def test_backward_runs_on_the_stream_of_another_thread_as_well() -> None:
    weight = torch.ones(2, device="hpu", requires_grad=True)
    with torch.Stream("hpu"):
        weight.square().sum().backward()
    assert torch.equal(weight.grad.cpu(), torch.full((2,), 2.0))


def test_process_has_one_device_and_the_server_all() -> None:
    assert _hpu_sim.current_device() == 0
    _hpu_sim.set_device(0)
    assert torch.hpu.device_count() == _hpu_sim.device_count() == 8


@pytest.mark.parametrize("make", [lambda: _hpu_sim.set_device(3), lambda: torch.Stream("hpu:3")])
def test_another_card_is_refused(make: object) -> None:
    with pytest.raises(RuntimeError, match=r"hpu:3 does not exist.*one card, which is hpu:0"):
        make()  # type: ignore[operator]
