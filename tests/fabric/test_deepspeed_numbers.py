"""Fabric's losses under DeepSpeed, in whatever shards, are those under DDP."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import DeepSpeedStrategy
from torch import nn

from tests.fabric.deepspeed_loop import adamw, cards, sgd, train, train_masters
from tests.helpers.trainers import run_trainers
from tests.strategies.sharded_cases import global_losses, make_net

STAGES = (0, 1, 2, 3)
PRECISIONS = ("bf16-mixed", "bf16-true")
CLIP = 0.3
pytestmark = pytest.mark.slow

SGD = "sgd_accumulated_clipped_scheduled"
CASES: dict[str, dict[str, Any]] = {
    "adamw": {"make_optimizer": adamw},
    SGD: {
        "make_optimizer": sgd,
        "accumulate": 2,
        "max_norm": CLIP,
        "is_scheduled": True,
    },
}
RUNS = [(2, SGD), (2, "adamw"), (4, SGD), (4, "adamw")]
"""Numbers of ranks, each with the case that they train."""
Losses = dict[Any, list[float]]


def _sharded(num: int, stage: int, case: dict[str, Any], **settings: Any) -> list[float]:
    config = {"zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True}
    if "max_norm" in case:
        config["gradient_clipping"] = case["max_norm"]
    fabric = cards(num, strategy=DeepSpeedStrategy(config=config), **settings)
    return train(fabric, **{**case, "max_norm": None})


def _train(rank: int, num: int, name: str) -> Losses:
    case = CASES[name]
    losses: Losses = {"ddp": train(cards(num, strategy="ddp"), **case)}
    bf16 = cards(num, strategy="ddp", precision="bf16-true")
    losses["bf16"] = train_masters(bf16, **case)
    for stage in STAGES:
        losses[stage] = _sharded(num, stage, case)
        for precision in PRECISIONS:
            losses[stage, precision] = _sharded(num, stage, case, precision=precision)
    _accumulate(num, losses)
    _make_in_shards(num, losses)
    return losses


def _accumulate(num: int, losses: Losses) -> None:
    """Other ways to accumulate; each of two batches."""
    losses["accumulated", "ddp"] = train(cards(num, strategy="ddp"), accumulate=2)
    config = {"gradient_accumulation_steps": 2, "zero_allow_untested_optimizer": True}
    for stage in STAGES:
        zero = {"zero_optimization": {"stage": stage}}
        for zeros_first in (False, True):
            fabric = cards(num, strategy=DeepSpeedStrategy(config=config | zero))
            losses["accumulated", stage, zeros_first] = train(fabric, zeros_first=zeros_first)
    for stage in (0, 3):
        fabric = cards(num, strategy=f"deepspeed_stage_{stage}" if stage else _stage_0())
        losses["accumulated", stage, "reduced"] = train(fabric, accumulate=2, syncs_each=True)


def _stage_0() -> DeepSpeedStrategy:
    return DeepSpeedStrategy(stage=0)


def _make_in_shards(num: int, losses: Losses) -> None:
    """`Fabric.init_module`; on the device other weights are drawn than on the CPU."""
    for name in ("ddp", "deepspeed_stage_2", "deepspeed_stage_3"):
        fabric = cards(num, strategy=name)

        def make(fabric: Fabric = fabric) -> nn.Module:
            with fabric.init_module():
                return make_net()

        losses["init_module", name] = train(fabric, make=make)


@pytest.fixture(scope="module", params=RUNS, ids=lambda run: f"{run[0]}-{run[1]}")
def losses(request: pytest.FixtureRequest, tmp_path_factory: Any) -> dict[Any, torch.Tensor]:
    """The losses of each training on the whole batch."""
    num, name = request.param
    folder = tmp_path_factory.mktemp("ranks")
    ranks = run_trainers(_train, folder, num, name, num_ranks=num, timeout=280)
    return {key: global_losses([rank[key] for rank in ranks]) for key in ranks[0]}


def _off(losses: dict[Any, torch.Tensor], key: Any, reference: Any = "ddp") -> float:
    return float((losses[key] - losses[reference]).abs().max())


@pytest.mark.parametrize("stage", STAGES)
def test_losses_are_those_of_ddp(losses: Any, stage: int) -> None:
    assert _off(losses, stage) < 1e-6


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("stage", STAGES)
def test_losses_in_bf16_are_those_of_ddp_with_the_same_masters(
    losses: Any, stage: int, precision: str
) -> None:
    assert _off(losses, (stage, precision), "bf16") < 3e-3
    assert _off(losses, (stage, precision)) > 0


@pytest.mark.parametrize("zeros_first", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_deepspeed_accumulates_and_divides_where_its_settings_say_so(
    losses: Any, stage: int, zeros_first: bool
) -> None:
    """The loop steps after each batch, and zeroes the gradients before or after it."""
    assert _off(losses, ("accumulated", stage, zeros_first), ("accumulated", "ddp")) < 1e-6


@pytest.mark.parametrize("stage", [0, 3])
def test_gradients_that_are_reduced_one_by_one_add_up(losses: Any, stage: int) -> None:
    assert _off(losses, ("accumulated", stage, "reduced"), ("accumulated", "ddp")) < 1e-6


@pytest.mark.parametrize("name", ["deepspeed_stage_2", "deepspeed_stage_3"])
def test_models_made_in_init_module_train_as_with_ddp(losses: Any, name: str) -> None:
    assert _off(losses, ("init_module", name), ("init_module", "ddp")) < 1e-6
