"""A move to the card that gives a model new parameters, as one to an HPU may, changes no loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from lightning.fabric.strategies import DeepSpeedStrategy as FabricStrategy
from lightning.pytorch.strategies import DeepSpeedStrategy
from torch import nn

from tests.fabric.deepspeed_loop import adamw, cards, train
from tests.helpers.slow import SLOW
from tests.helpers.trainers import run_trainers
from tests.strategies.sharded_cases import CASES, global_losses, make_net

STAGES = (0, 2, 3)


@contextmanager
def _a_move_replaces_parameters() -> Iterator[None]:
    original, future = nn.Module.to, torch.__future__

    def to(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        is_move = any(str(each).startswith("hpu") for each in (*args, *kwargs.values()))
        is_on_cpu = any(each.device.type == "cpu" for each in module.parameters())
        future.set_overwrite_module_params_on_conversion(is_move and is_on_cpu)
        try:
            return original(module, *args, **kwargs)
        finally:
            future.set_overwrite_module_params_on_conversion(False)

    nn.Module.to = to  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.to = original  # type: ignore[method-assign]


def _train(rank: int) -> dict[tuple[str, int | str], list[float]]:
    losses: dict[tuple[str, int | str], list[float]] = {
        ("fabric", "ddp"): train(cards(strategy="ddp")),
        ("trainer", "ddp"): CASES["adamw"].fit(2, strategy="ddp")[0],
    }
    with _a_move_replaces_parameters():
        net = make_net()
        before = [*net.parameters()]
        assert not any(a is b for a, b in zip(before, net.to("hpu").parameters(), strict=True))
        for stage in STAGES:
            fabric = cards(strategy=FabricStrategy(stage=stage))
            losses["fabric", stage] = train(fabric, make_optimizer=adamw)
            strategy = DeepSpeedStrategy(stage=stage)
            losses["trainer", stage] = CASES["adamw"].fit(2, strategy=strategy)[0]
    return losses


@pytest.fixture(scope="module", **SLOW)
def losses(tmp_path_factory: Any) -> dict[Any, torch.Tensor]:
    ranks = run_trainers(_train, tmp_path_factory.mktemp("ranks"))
    return {key: global_losses([rank[key] for rank in ranks]) for key in ranks[0]}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("room", ["fabric", "trainer"])
def test_the_optimizer_goes_with_the_model(losses: Any, room: str, stage: int) -> None:
    torch.testing.assert_close(losses[room, stage], losses[room, "ddp"], rtol=0, atol=1e-6)
