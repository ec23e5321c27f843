"""Host times of steps, by hand."""

from __future__ import annotations

import pytest

from lightning_gaudi.callbacks._clock import Between, TrainingClock

DATA, LOGGING, STANDSTILL, MORE = Between.DATA, Between.LOGGING, Between.STANDSTILL, Between.MORE


def _seconds(*pauses: tuple[float, Between | None], step_s: float = 1.0) -> float:
    """Of a step, then pauses with a step behind each."""
    clock, now = TrainingClock(), 100.0
    for pause_s, between in ((0.0, None), *pauses):
        if between is not None:
            clock.note(between)
        clock.start_step(now + pause_s)
        now += pause_s + step_s
        clock.end_step(now, counts=True)
    return clock.seconds


def test_waiting_for_data_counts_and_what_interrupts_counts_as_a_usual_pause():
    usual = [(0.2, DATA), (0.4, DATA)]
    # The first step has waited, too, before the clock was there to see it.
    assert _seconds(*usual) == pytest.approx(3 + 0.2 + 0.4 + 0.3)
    assert _seconds(*usual, (50.0, STANDSTILL)) == pytest.approx(4 + 4 * 0.3)
    assert _seconds(*usual, (5.0, LOGGING)) == pytest.approx(4 + 4 * 0.3)
    assert _seconds(*usual, (5.0, MORE)) == pytest.approx(4 + 3 * 0.3 + 5.0)


def test_where_each_step_logs_logging_counts_and_validation_does_not():
    logged = [(0.5, LOGGING), (0.7, LOGGING)]
    assert _seconds(*logged) == pytest.approx(3 + 3 * 0.6)
    assert _seconds(*logged, (50.0, STANDSTILL)) == pytest.approx(4 + 4 * 0.6)


def test_steps_that_do_not_count_take_no_time():
    clock = TrainingClock()
    for now, counts in ((0.0, True), (10.0, False), (20.0, True)):
        clock.start_step(now)
        clock.end_step(now + 1, counts=counts)
    assert clock.seconds == pytest.approx(2 + 2 * 9)  # 1..10 is left out, 11..20 counts


def test_of_several_interruptions_the_longest_kind_holds():
    clock = TrainingClock()
    for now in (0.0, 2.0, 40.0):
        clock.start_step(now)
        clock.end_step(now + 1, counts=True)
        if now == 2.0:
            for between in (LOGGING, STANDSTILL, MORE):
                clock.note(between)
    assert clock.seconds == pytest.approx(3 + 3 * 1.0)
