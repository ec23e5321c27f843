"""The largest batch is found with few measurements."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from lightning_gaudi.tools.plan.search import LARGEST, Need, largest_within


def _needs(slope: float, square: float, flat: int = 53_000) -> Callable[[int], Need]:
    def measure(size: int) -> Need:
        growing = int(43_000 + slope * size + square * size * size)
        return Need(max(flat, growing), growing)

    return measure


def _all(
    measure: Callable[[int], Need], waves: list[Collection[int]]
) -> Callable[[Collection[int]], dict[int, Need]]:
    """Measures what is asked for at once, and keeps what that was."""

    def needs(sizes: Collection[int]) -> dict[int, Need]:
        waves.append(sizes)
        return {size: measure(size) for size in sizes}

    return needs


@pytest.mark.parametrize(("slope", "most"), [(10, 5), (220, 5), (3000, 8), (30_000, 4)])
def test_a_line_needs_few_measurements_for_many_cards(slope: float, most: int) -> None:
    measure = _needs(slope, 0)
    known, waves, budgets = {1: measure(1)}, [], (32_000, 79_150, 94_620, 128_000)
    sizes = largest_within(_all(measure, waves), budgets, known).sizes
    for budget, found in zip(budgets, sizes, strict=True):
        true = max((b for b in range(1, LARGEST + 1) if measure(b).whole <= budget), default=0)
        assert true * 0.98 - 1 < found <= true
    assert len(known) <= most
    assert len(waves) <= 3


@pytest.mark.parametrize(
    ("held", "most", "num_waves"),
    [(43_000, 4, 1), (42_900, 7, 2), (40_000, 7, 3), (43_219, 7, 3), (50_000, 7, 3)],
)
def test_what_is_held_tells_where_to_look(held: int, most: int, num_waves: int) -> None:
    measure = _needs(220, 0)
    known, waves, budgets = {1: measure(1)}, [], (79_150, 94_620, 128_000)
    sizes = largest_within(_all(measure, waves), budgets, known, held=held).sizes
    assert sizes == [164, 234, 386]
    assert len(known) <= most
    assert len(waves) <= num_waves


def test_what_is_certain_is_not_measured() -> None:
    def measure(size: int) -> Need:  # the most of two lines: the optimizer's tensors, then logits
        growing = max(43_000 + 20 * size, 30_000 + 500 * size)
        return Need(max(45_000, growing), growing)

    known, waves = {1: measure(1)}, list[Collection[int]]()
    budgets = [*range(46_000, 128_000, 1_000)]
    sizes = largest_within(_all(measure, waves), budgets, known, held=43_000).sizes
    for budget, found in zip(budgets, sizes, strict=True):
        true = max(b for b in range(1, LARGEST + 1) if measure(b).whole <= budget)
        assert true * 0.98 - 1 < found <= true
    assert len(known) <= 12
    assert all(len(wave) <= 2 for wave in waves)


def test_what_is_not_convex_is_measured() -> None:
    def measure(size: int) -> Need:  # a step, as of a program that takes another way from 100 on
        growing = 43_000 + 10 * size + (20_000 if size >= 100 else 0)
        return Need(growing, growing)

    known = {1: measure(1), 50: measure(50), 300: measure(300), 400: measure(400)}
    (found,) = largest_within(_all(measure, []), [60_000], known).sizes
    assert 97 <= found <= 99


@pytest.mark.parametrize("slope", [10, 220, 3000])
@pytest.mark.parametrize("square", [0.1, 10])
def test_a_curve_is_found_within_two_percent(slope: float, square: float) -> None:
    measure = _needs(slope, square)
    budgets = (60_000, 128_000)
    sizes = largest_within(_all(measure, []), budgets, {7: measure(7)}).sizes
    for budget, found in zip(budgets, sizes, strict=True):
        true = max(b for b in range(1, LARGEST + 1) if measure(b).whole <= budget)
        assert true * 0.97 - 1 < found <= true


def test_what_grows_elsewhere_is_not_looked_for_one_by_one() -> None:
    def measure(size: int) -> Need:  # what is told to grow is not what fills the card
        return Need(5_000 + 800 * size, 5_000 + 10 * size)

    known = {1: measure(1)}
    (found,) = largest_within(_all(measure, []), [85_000], known).sizes
    assert 98 <= found <= 100
    assert len(known) <= 40  # of 7,900 in which guesses by the line would go down


def test_what_never_grows_ends_at_the_largest() -> None:
    (found,) = largest_within(_all(lambda size: Need(5, 5), []), [10], {}).sizes
    assert LARGEST * 0.98 < found <= LARGEST
    nothing = largest_within(_all(lambda size: Need(50, 5), []), [10, 20], {})
    assert nothing == ([0, 0], True)


def test_a_search_that_takes_too_long_ends_with_what_is_known() -> None:
    measure, waves = _needs(220, 10), list[Collection[int]]()
    budgets = (30_000, 60_000, 10**9)
    found = largest_within(_all(measure, waves), budgets, {7: measure(7)}, lambda: len(waves) > 2)
    known = {size for wave in waves for size in wave} | {7}
    best = [max((b for b in known if measure(b).whole <= budget), default=0) for budget in budgets]
    assert found == (best, False)
    assert best[0] == 0 < best[1] < best[2]


def test_sizes_that_cannot_be_measured_bound_the_search() -> None:
    whole = _needs(10, 0)

    def measure(sizes: Collection[int]) -> dict[int, Need | None]:
        # Of one sample no statistics can be taken; of many the program takes too long.
        return {size: whole(size) if 1 < size <= 500 else None for size in sizes}

    found = largest_within(measure, [10**9], {32: whole(32)})
    assert 125 <= found.sizes[0] <= 500
    assert not found.is_complete
    heavy = _needs(1e6, 0, flat=0)
    asked = list[int]()

    def measure_heavy(sizes: Collection[int]) -> dict[int, Need | None]:
        asked.extend(sizes)
        return {size: heavy(size) if size > 1 else None for size in sizes}

    found = largest_within(measure_heavy, [5_500_000], {32: heavy(32)})
    assert found.sizes == [5]
    assert 1 in asked
    assert largest_within(measure_heavy, [1_500_000], {32: heavy(32)}) == ([0], False)
