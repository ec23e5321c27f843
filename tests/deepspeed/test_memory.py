from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from torch import nn

from lightning_gaudi.deepspeed.engine.memory import LIGHTNINGS_BUCKET, with_fitting_buckets


def _config(size: int) -> dict[str, Any]:
    return {"zero_optimization": {"stage": 3, "reduce_bucket_size": size}}


@pytest.mark.parametrize(
    ("num_layers", "world_size", "expected"),
    [
        (32, 2, 400),  # an eighth of all 3,200 elements: a quarter of a card's share
        (32, 8, 100),  # not less than the largest tensor
    ],
)
def test_a_bucket_that_lightning_chose_fits_the_model(
    num_layers: int, world_size: int, expected: int
) -> None:
    model = nn.ModuleList([nn.Linear(10, 10, bias=False) for _ in range(num_layers)])
    config = _config(LIGHTNINGS_BUCKET)
    before = deepcopy(config)
    fitting = with_fitting_buckets(config, model, world_size)
    assert fitting["zero_optimization"]["reduce_bucket_size"] == expected
    assert config == before


@pytest.mark.parametrize("config", [_config(5000), {"zero_optimization": {"stage": 3}}, {}])
def test_what_the_user_says_stays(config: dict[str, Any]) -> None:
    assert with_fitting_buckets(config, nn.Linear(2, 2), 2) == config


def test_frozen_weights_need_no_bucket() -> None:
    model = nn.Linear(10, 10).requires_grad_(False)
    fitting = with_fitting_buckets(_config(LIGHTNINGS_BUCKET), model, 2)
    assert fitting["zero_optimization"]["reduce_bucket_size"] == 1
