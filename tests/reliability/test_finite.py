import math

import pytest
import torch

from lightning_gaudi.reliability import finite
from lightning_gaudi.reliability.finite import BadLoss, FiniteLosses, left_out, not_finite


@pytest.mark.parametrize("is_lazy", [True, False])
@pytest.mark.parametrize("ends_interval", [True, False])
def test_the_first_loss_that_is_not_finite_is_found(ends_interval, is_lazy):
    losses = FiniteLosses()
    for step, value in enumerate([1.0, 2.0, math.inf, math.nan], 1):
        losses.note(torch.tensor(value, dtype=torch.bfloat16), step)
    bad = losses.first_bad(ends_interval=ends_interval, is_lazy=is_lazy)
    assert bad == BadLoss(3, math.inf)
    assert losses.first_bad(ends_interval=True, is_lazy=is_lazy) is None


@pytest.mark.parametrize("is_lazy", [True, False])
def test_a_look_within_an_interval_leaves_the_next_one_its_number(is_lazy, monkeypatch):
    """In lazy mode another number of losses would be another graph."""
    numbers = []
    together = finite._together
    monkeypatch.setattr(
        finite, "_together", lambda each: numbers.append(len(each)) or together(each)
    )
    losses = FiniteLosses()
    for step in range(1, 14):
        losses.note(torch.tensor(math.nan if step == 13 else 1.0), step)
        if step == 6:
            assert losses.first_bad(ends_interval=False, is_lazy=is_lazy) is None
        if step % 4 == 0:
            assert losses.first_bad(ends_interval=True, is_lazy=is_lazy) is None
    assert losses.first_bad(ends_interval=True, is_lazy=is_lazy).step == 13
    assert numbers == ([4, 4, 4] if is_lazy else [4, 2, 2, 4, 1])


def test_losses_of_any_shape_and_dtype_are_looked_at_together():
    losses = FiniteLosses()
    losses.note(torch.ones(1, requires_grad=True), 1)
    losses.note(torch.tensor([1.0, -math.inf], dtype=torch.float16), 1)
    assert losses.first_bad(ends_interval=True, is_lazy=False) == BadLoss(1, -math.inf)


def test_the_error_names_the_first_step_and_its_rank():
    error = not_finite([BadLoss(7, math.nan), None, BadLoss(6, math.inf)], ended_after=10)
    assert "The loss of step 6 on rank 2 is inf: the run ends after step 10" in str(error)


@pytest.mark.parametrize(
    ("bad_steps", "first"),
    [([2, 4, 6, 8], None), ([2, 3, 5, 6], None), ([3, 4, 5], 3), ([1, 5, 6, 7, 8], 5)],
)
@pytest.mark.parametrize("every", [1, 2, 8])
def test_where_steps_are_left_out_three_in_a_row_are_too_many(bad_steps, first, every):
    losses = FiniteLosses(num_left_out=2)
    found = []
    for step in range(1, 9):
        losses.note(torch.tensor(1.0), step)  # two batches make a step
        losses.note(torch.tensor(math.inf if step in bad_steps else 1.0), step)
        if step % every == 0:
            found.append(losses.first_bad(ends_interval=True, is_lazy=False))
    said = [bad for bad in found if bad is not None]
    assert [bad.step for bad in said[:1]] == ([] if first is None else [first])
    assert losses.left_out is not None


def test_what_is_left_out_is_said():
    assert "the loss of step 3 is inf" in left_out(BadLoss(3, math.inf))
    assert "3 such steps in a row" in left_out(BadLoss(3, math.inf))
