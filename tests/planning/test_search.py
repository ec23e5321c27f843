"""The largest batch is found with few measurements."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lightning_gaudi.planning.search import LARGEST, Need, largest_within


def _needs(slope: float, square: float, flat: int = 53_000) -> Callable[[int], Need]:
    def measure(size: int) -> Need:
        growing = int(43_000 + slope * size + square * size * size)
        return Need(max(flat, growing), growing)

    return measure


@pytest.mark.parametrize(("slope", "most"), [(10, 5), (220, 5), (3000, 8), (30_000, 4)])
def test_a_line_needs_few_measurements_for_many_cards(slope: float, most: int) -> None:
    measure = _needs(slope, 0)
    known = {1: measure(1)}
    for budget in (32_000, 79_150, 94_620, 128_000):
        found = largest_within(measure, budget, known)
        true = max((b for b in range(1, LARGEST + 1) if measure(b).whole <= budget), default=0)
        assert true * 0.98 - 1 < found <= true
    assert len(known) <= most


@pytest.mark.parametrize("slope", [10, 220, 3000])
@pytest.mark.parametrize("square", [0.1, 10])
def test_a_curve_is_found_within_two_percent(slope: float, square: float) -> None:
    measure = _needs(slope, square)
    known = {7: measure(7)}
    for budget in (60_000, 128_000):
        found = largest_within(measure, budget, known)
        true = max(b for b in range(1, LARGEST + 1) if measure(b).whole <= budget)
        assert true * 0.97 - 1 < found <= true


def test_what_never_grows_ends_at_the_largest() -> None:
    assert LARGEST * 0.98 < largest_within(lambda size: Need(5, 5), 10, {}) <= LARGEST
    assert largest_within(lambda size: Need(50, 5), 10, {}) == 0
