"""Callbacks that average weights, where the weights are whole and where they are in shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import nn

from tests.helpers.tiny import NUM_FEATURES, TinyModule, batches, hpu_trainer
from tests.helpers.trainers import run_trainers


class Wide(TinyModule):
    """Its weights are large enough for ZeRO-3 to part them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        wide = 400
        self.net = nn.Sequential(
            nn.Linear(NUM_FEATURES, wide), nn.Linear(wide, wide), nn.Linear(wide, 1)
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def _fit(rank: int, strategy: str) -> Any:
    model = Wide()
    trainer = hpu_trainer(
        devices=2,
        max_steps=4,
        strategy=strategy,
        precision="32-true",
        callbacks=[EMAWeightAveraging(decay=0.5)],
    )
    try:
        trainer.fit(model, batches(8))
    except MisconfigurationException as error:
        return str(error)
    return [weight.detach().cpu() for weight in model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["deepspeed_stage_1", "deepspeed_stage_2"])
def test_whole_weights_are_averaged_as_under_ddp(strategy: str, tmp_path: Path) -> None:
    expected, found = (run_trainers(_fit, tmp_path, each)[0] for each in ("ddp", strategy))
    torch.testing.assert_close(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "name"),
    [("fsdp", "HPUFSDPStrategy"), ("deepspeed_stage_3", "HPUDeepSpeedStrategy")],
)
def test_weights_in_shards_are_not_averaged(strategy: str, name: str, tmp_path: Path) -> None:
    message = f"EMAWeightAveraging averages whole weights, but {name} leaves each rank parts"
    for found in run_trainers(_fit, tmp_path, strategy):
        assert message in found
