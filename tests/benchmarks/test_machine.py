"""What the machine is, and who else is at work there."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from benchmarks.harness import machine

_TICKS = os.sysconf("SC_CLK_TCK")


def _stat(user_s: float, idle_s: float, steal_s: float = 0) -> str:
    values = [user_s, 0, 0, idle_s, 50, 0, 0, steal_s, 0, 0]
    return f"cpu  {' '.join(str(int(each * _TICKS)) for each in values)}\ncpu0 1 2 3\n"


def _watch(begin: str | None, end: str | None, own_s: float) -> machine.OthersWatch:
    stats: Iterator[str | None] = iter([begin, end])
    owns, times = iter([0.0, own_s]), iter([100.0, 110.0])
    return machine.OthersWatch(lambda: next(stats), lambda: next(owns), lambda: next(times))


def test_what_others_use_is_all_that_is_used_without_ours() -> None:
    watch = _watch(_stat(1000, 500), _stat(1012, 508, steal_s=3), own_s=9)
    assert watch.num_cores() == pytest.approx((12 + 3 - 9) / 10)


def test_nobody_knows_what_others_use_where_the_system_does_not_say() -> None:
    assert _watch(None, None, own_s=9).num_cores() is None
    assert not machine.is_busy(None)


def test_a_tenth_of_the_machine_is_busy() -> None:
    share = 0.1 * machine.num_cores()
    assert machine.is_busy(share * 1.01)
    assert not machine.is_busy(share)


def test_this_machine_can_be_described() -> None:
    assert machine.describe()["cores"] >= 1
    found = machine.versions()
    assert {"python", "torch", "lightning", "transformers", "commit"} <= set(found)


@pytest.mark.slow
def test_what_others_use_is_known_after_a_second() -> None:
    watch = machine.OthersWatch()
    assert watch.num_cores() is None, "within a few ticks of the system's clock nobody knows"
    time.sleep(2)
    others = watch.num_cores()
    assert others is None or 0 <= others <= (os.cpu_count() or 1) * 1.1
