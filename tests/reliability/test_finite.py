import math

import pytest
import torch

from lightning_gaudi.reliability.finite import BadLoss, FiniteLosses, not_finite


@pytest.mark.parametrize("at_once", [True, False])
def test_the_first_loss_that_is_not_finite_is_found(at_once):
    losses = FiniteLosses()
    for step, value in enumerate([1.0, 2.0, math.inf, math.nan], 1):
        losses.note(torch.tensor(value, dtype=torch.bfloat16), step)
    assert losses.first_bad(at_once=at_once) == BadLoss(3, math.inf)
    assert losses.first_bad(at_once=at_once) is None


def test_losses_of_any_shape_and_dtype_are_looked_at_together():
    losses = FiniteLosses()
    losses.note(torch.ones(1, requires_grad=True), 1)
    losses.note(torch.tensor([1.0, -math.inf], dtype=torch.float16), 1)
    assert losses.first_bad(at_once=True) == BadLoss(1, -math.inf)


def test_the_error_names_the_first_step_and_its_rank():
    error = not_finite([BadLoss(7, math.nan), None, BadLoss(6, math.inf)], ended_after=10)
    assert "The loss of step 6 on rank 2 is inf: the run ends after step 10" in str(error)
