"""What `from_pretrained` loads under DeepSpeed's stage 3 is the pretrained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

from lightning_gaudi.fabric.strategies import HPUDeepSpeedStrategy as FabricStrategy
from lightning_gaudi.strategies import HPUDDPStrategy, HPUDeepSpeedStrategy
from tests.helpers.tiny import QUIET
from tests.helpers.trainers import run_trainers

pytestmark = pytest.mark.filterwarnings("default")

NUM_RANKS = 2


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    size = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": 64}
    dropped = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(**size, **dropped, bos_token_id=0, eos_token_id=0))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)  # so that a new model is another one
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def _batches() -> Tensor:
    return torch.randint(64, (8, 12), generator=torch.Generator().manual_seed(1))


class Module(pl.LightningModule):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.losses: list[Tensor] = []

    def configure_model(self) -> None:
        if not hasattr(self, "model"):
            self.model = GPT2LMHeadModel.from_pretrained(self.folder)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss: Tensor = self.model(input_ids=batch[0], labels=batch[0]).loss
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def _fit(rank: int, folder: Path, is_sharded: bool) -> list[float]:
    strategy = HPUDeepSpeedStrategy(stage=3) if is_sharded else HPUDDPStrategy()
    module = Module(folder)
    settings: Any = {"accelerator": "hpu", "devices": NUM_RANKS, "strategy": strategy, **QUIET}
    trainer = pl.Trainer(**settings, max_epochs=1)
    trainer.fit(module, DataLoader(TensorDataset(_batches()), batch_size=2))
    return [float(loss) for loss in module.losses]


@pytest.mark.slow
def test_the_trainer_loads_into_shards(saved: Path, tmp_path: Path) -> None:
    sharded, expected = (run_trainers(_fit, tmp_path, saved, each) for each in (True, False))
    assert sharded == [pytest.approx(each, rel=1e-5) for each in expected]


def _evaluate(rank: int, folder: Path) -> float:
    fabric = Fabric(accelerator="hpu", devices=NUM_RANKS, strategy=FabricStrategy(stage=3))
    fabric.launch()
    with fabric.init_module():
        model = GPT2LMHeadModel.from_pretrained(folder)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, _ = fabric.setup(model, optimizer)
    ids = _batches().to(fabric.device)
    return float(model(input_ids=ids, labels=ids).loss.detach())


@pytest.mark.slow
def test_fabric_loads_into_shards(saved: Path, tmp_path: Path) -> None:
    ids = _batches()
    expected = float(GPT2LMHeadModel.from_pretrained(saved)(input_ids=ids, labels=ids).loss)
    assert run_trainers(_evaluate, tmp_path, saved) == [pytest.approx(expected, rel=1e-5)] * 2
