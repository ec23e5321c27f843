"""A run resumes with other ranks or batches: in the same order of samples, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.resume_cases import resume_on
from tests.helpers.ranks import call_forked

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(("then", "now"), [((4, 2), (2, 4)), ((2, 4), (4, 2))])
def test_steps_of_as_many_samples_have_the_same_ones(
    then: tuple[int, int], now: tuple[int, int], tmp_path: Path, measured: Callable[[str], None]
) -> None:
    call_forked(resume_on, tmp_path, then, now, timeout=240)
    num_steps = (tmp_path / "num_steps").read_text()
    measured(f"{then[0]} ranks to {now[0]}: {num_steps} of {num_steps} steps of the same samples")


@pytest.mark.parametrize(
    ("then", "now", "message"),
    [
        ((2, 2), (4, 2), "by 2 ranks with batches of 2 samples (4 a step), and this fit has 4 "),
        ((2, 2), (1, 4), "by 2 ranks with batches of 2 samples (4 a step), and this fit has 1 "),
        ((2, 4), (2, 2), "by 2 ranks with batches of 4 samples (8 a step), and this fit has 2 "),
    ],
)
def test_others_are_refused_with_both_numbers(
    then: tuple[int, int],
    now: tuple[int, int],
    message: str,
    tmp_path: Path,
    measured: Callable[[str], None],
) -> None:
    with pytest.raises(AssertionError) as error:
        call_forked(resume_on, tmp_path, then, now, timeout=240)
    said = " ".join(str(error.value).split())
    assert "ValueError: The checkpoint was saved within an epoch " + message in said
    measured(f"{then[0]} x {then[1]} to {now[0]} x {now[1]}: refused with both")
