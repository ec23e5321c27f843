from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from lightning_gaudi.deepspeed.engine.memory import LIGHTNINGS_BUCKET, with_fitting_buckets


def _config(size: int) -> dict[str, Any]:
    return {"zero_optimization": {"stage": 3, "reduce_bucket_size": size}}


@pytest.mark.parametrize(
    ("width", "num_layers", "world_size", "expected"),
    [
        (10, 32, 2, 3200),  # a small model is one bucket
        (5000, 3, 8, 25_000_000),  # not less than the largest tensor
        (5000, 16, 2, 50_000_000),  # an eighth of all 400 million: a quarter of a card's share
        (1000, 16, 8, 6_553_600),  # 25 MiB
    ],
)
def test_a_bucket_that_lightning_chose_fits_the_model(
    width: int, num_layers: int, world_size: int, expected: int
) -> None:
    with torch.device("meta"):
        model = nn.ModuleList([nn.Linear(width, width, bias=False) for _ in range(num_layers)])
    config = _config(LIGHTNINGS_BUCKET)
    before = deepcopy(config)
    fitting = with_fitting_buckets(config, model, world_size)
    assert fitting["zero_optimization"]["reduce_bucket_size"] == expected
    assert config == before


@pytest.mark.parametrize("config", [_config(5000), {"zero_optimization": {"stage": 2}}, {}])
def test_what_the_user_says_stays(config: dict[str, Any]) -> None:
    zero = with_fitting_buckets(config, nn.Linear(2, 2), 2).get("zero_optimization", {})
    asked = config.get("zero_optimization", {})
    # ZeRO-3 would copy gradients into a bucket that nothing is sent from.
    assert zero == asked | ({"contiguous_gradients": False} if asked.get("stage") == 3 else {})


def test_a_bucket_that_is_sent_is_made() -> None:
    config = {"zero_optimization": {"stage": 3, "reduce_scatter": False}}
    assert with_fitting_buckets(config, nn.Linear(2, 2), 2) == config


def test_frozen_weights_need_no_bucket() -> None:
    model = nn.Linear(10, 10).requires_grad_(False)
    fitting = with_fitting_buckets(_config(LIGHTNINGS_BUCKET), model, 2)
    assert fitting["zero_optimization"]["reduce_bucket_size"] == 1
