"""What is measured, and what is left out of it."""

import pytest
import torch

from lightning_gaudi.inference import LatencyReport, Stopwatch, latency as module


class Clock:
    """A clock that the test sets."""

    now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def run(stopwatch, clock, seconds, num_items=4, num_steps=5):
    """A call whose first token takes a fifth of its seconds."""
    with stopwatch.call(num_items):
        clock.now += seconds / 5
        stopwatch.first_token()
        clock.now += seconds * 4 / 5
        stopwatch.tokens(torch.tensor(num_items * num_steps), num_steps)


def test_warm_up_is_in_no_side_of_a_fraction(clock):
    stopwatch = Stopwatch("cpu", num_warmup_calls=2)
    for seconds in (100.0, 50.0, 1.0, 2.0, 3.0):
        run(stopwatch, clock, seconds)
    report = stopwatch.report()
    assert (report.num_calls, report.num_warmup_calls) == (3, 2)
    assert report.seconds == pytest.approx(6.0)
    assert (report.num_items, report.num_tokens) == (12, 60)
    assert report.tokens_per_second == pytest.approx(10.0)
    assert report.items_per_second == pytest.approx(2.0)
    assert report.first_token_ms == pytest.approx(400.0)
    assert report.per_token_ms == pytest.approx(400.0)


def test_pictures_have_no_tokens(clock):
    stopwatch = Stopwatch("cpu", num_warmup_calls=0, item="pictures")
    with stopwatch.call(num_items=8):
        clock.now += 4.0
    report = stopwatch.report()
    assert report.items_per_second == pytest.approx(2.0)
    assert report.first_token_ms is report.per_token_ms is None
    assert str(report).splitlines() == [
        "calls       1 (and 0 to warm up)",
        "pictures    8",
        "pictures/s  2.00",
    ]


def test_a_report_is_a_table():
    report = LatencyReport(2, 1, 0.5, 16, 1600, first_token_ms=12.345, per_token_ms=2.0)
    assert str(report).splitlines() == [
        "calls               2 (and 1 to warm up)",
        "prompts             16",
        "prompts/s           32.00",
        "tokens              1,600",
        "tokens/s            3,200.0",
        "first token         12.35 ms",
        "each further token  2.00 ms",
    ]


def test_a_call_that_fails_does_not_count(clock):
    stopwatch = Stopwatch("cpu", num_warmup_calls=0)
    with pytest.raises(RuntimeError, match="broken"), stopwatch.call(1):
        raise RuntimeError("broken")
    assert not stopwatch.is_running
    run(stopwatch, clock, 1.0)
    assert stopwatch.report().num_calls == 1


def test_the_device_is_waited_for_before_the_clock_is_read():
    from lightning_gaudi.simulator.statistics import host_syncs

    before = host_syncs().get("synchronize", 0)
    with Stopwatch("hpu").call(1):
        pass
    assert host_syncs()["synchronize"] - before == 2


def test_misuse_is_refused(clock):
    stopwatch = Stopwatch("cpu")
    run(stopwatch, clock, 1.0)
    with pytest.raises(ValueError, match="There were 1 calls, and the first 1 warm up"):
        stopwatch.report()
    with pytest.raises(ValueError, match="num_warmup_calls must be at least 0, but is -1"):
        Stopwatch("cpu", num_warmup_calls=-1)
    with stopwatch.call(1), pytest.raises(RuntimeError, match="does not nest"), stopwatch.call(1):
        pass
