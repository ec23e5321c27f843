"""A figure, its limit and its text; sides measured in turns."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.harness.curves import curve, exponent
from benchmarks.harness.interleaved import Effort, in_turns
from benchmarks.harness.rows import RATIO, Row, number, of_rounds, ratio, seconds, table


def test_a_ratio_is_the_median_of_the_rounds_and_not_the_ratio_of_medians() -> None:
    ours, theirs = [1.0, 4.0, 9.0, 2.0], [1.0, 1.0, 3.0, 4.0]
    row = ratio("step", ours, theirs, limit=2.5)
    rounds = np.divide(ours, theirs)
    assert row.figure == np.median(rounds) != np.median(ours) / np.median(theirs)
    assert row.quartiles == pytest.approx(np.quantile(rounds, [0.25, 0.75]))
    assert row.num_rounds == 4
    assert row.detail == "3.00 s against 2.00 s"


@pytest.mark.parametrize(
    ("figure", "limit", "is_floor", "is_kept"),
    [
        (1.5, 1.5, False, True),
        (1.6, 1.5, False, False),
        (1.5, 1.5, True, True),
        (1.4, 1.5, True, False),
        (1e9, None, False, True),
        (1, 0, False, False),
    ],
)
def test_a_limit_is_a_most_or_a_least(
    figure: float, limit: float | None, is_floor: bool, is_kept: bool
) -> None:
    assert Row("a", figure, RATIO, limit=limit, is_floor=is_floor).is_kept is is_kept


def test_a_row_comes_back_from_json() -> None:
    row = of_rounds("a", [1.0, 2.0, 4.0], "ms", limit=3.0, detail="b")
    assert Row.from_json(json.loads(json.dumps(row.as_json()))) == row


def test_a_table_says_which_limit_is_missed() -> None:
    text = table([Row("slow", 2.0, RATIO, limit=1.5), Row("fast", 3.0, RATIO, 2.2, is_floor=True)])
    slow, fast = text.splitlines()[1:]
    assert slow.split() == ["slow", "2.00", "x", "at", "most", "1.50,", "missed"]
    assert fast.split() == ["fast", "3.00", "x", "at", "least", "2.20"]


@pytest.mark.parametrize(
    ("value", "text"), [(12.3456, "12.3 s"), (0.00123, "1.23 ms"), (4.5e-7, "0.45 us")]
)
def test_durations_have_the_unit_that_suits_them(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(3000, "3,000"), (0.271, "0.27"), (123.4, "123")])
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_each_side_is_first_in_turn() -> None:
    order: list[str] = []

    def measure(side: str) -> int:
        order.append(side)
        return len(order)

    assert in_turns(("a", "b"), 3, measure) == {"a": [2, 3, 6], "b": [1, 4, 5]}
    assert "".join(order) == "baabba"


def test_a_quick_effort_has_three_rounds_at_most() -> None:
    assert [Effort(is_quick=True).rounds(each) for each in (2, 31)] == [2, 3]
    assert Effort().rounds(31) == 31


def test_an_exponent_is_the_slope_of_logarithms() -> None:
    assert exponent({8: 3.0, 64: 24.0, 512: 192.0}) == pytest.approx(1)
    assert exponent({10: 1.0, 100: 100.0}) == pytest.approx(2)
    assert exponent({10: 5.0, 100: 5.0}) == pytest.approx(0)
    assert exponent({10: 0.0, 100: 5.0}) == 0  # two are needed


def test_a_curve_has_its_points_beside_it_and_comes_back() -> None:
    row = curve("requests", {8: 16.0, 64: 128.0}, "requests", limit=1.1)
    assert (row.detail, row.is_kept) == ("8: 16 requests; 64: 128 requests", True)
    assert curve("time", {8: 0.001, 64: 0.1}).detail == "8: 1.00 ms; 64: 100 ms"
    assert Row.from_json(json.loads(json.dumps(row.as_json()))) == row
