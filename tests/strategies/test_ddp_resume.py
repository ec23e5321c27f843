"""Fitting that stops and goes on, and buffers that are not the same on all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn

from tests.helpers.tiny import NUM_FEATURES, QUIET, ValidatedModule, batches
from tests.helpers.trainers import run_trainers
from tests.strategies.ddp_cases import Batch, Normalized

NUM_RANKS = 2
Facts = dict[str, Any]


def _fit(
    model: Any, trainer_class: Any = pl.Trainer, path: Path | None = None, **settings: Any
) -> Any:
    settings = {"accelerator": "hpu", "devices": NUM_RANKS, **QUIET, "max_epochs": 1} | settings
    trainer = trainer_class(**settings)
    trainer.fit(model, batches(12), batches(4), ckpt_path=path)
    return trainer


def _dropout(rank: int, folder: Path) -> Facts:
    """The losses of two epochs, and of the second one after a new start."""
    facts: Facts = {}
    for name, epochs, path in (("whole", 2, None), ("half", 1, None), ("resumed", 2, "half.ckpt")):
        torch.manual_seed(11 + rank)  # other dropout on each rank
        model = ValidatedModule(dropout=0.5)
        trainer = _fit(model, max_epochs=epochs, path=path and folder / path)
        if name == "half":
            trainer.save_checkpoint(folder / "half.ckpt")
            torch.rand(100, device="hpu")
        facts[name] = torch.stack(model.losses).cpu(), _weights(model)
    return facts


class _Statistics(Normalized):
    """Notes the running mean of its batch norm, which each rank takes from its own batches."""

    def __init__(self) -> None:
        super().__init__()
        self.means: dict[str, list[Tensor]] = {}

    def _note(self, when: str) -> None:
        self.means.setdefault(when, []).append(self.net[1].running_mean.clone().cpu())

    def on_train_batch_end(self, *args: Any) -> None:
        self._note("training")

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._note("validation")

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return (self.net(batch[0]) - batch[0].sum(-1, keepdim=True)).pow(2).mean()


def _buffers(rank: int, folder: Path) -> Facts:
    facts: Facts = {}
    for name, strategy in (
        ("default", DDPStrategy()),
        ("broadcast", DDPStrategy(broadcast_buffers=True)),
    ):
        torch.manual_seed(1)
        model = _Statistics()
        trainer = _fit(model, strategy=strategy, num_sanity_val_steps=0)
        trainer.save_checkpoint(folder / f"{name}.ckpt")
        facts[name] = model.means
    return facts


class _OldModule(pytorch_lightning.LightningModule):
    """With dropout and a validation, of the other namespace."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(NUM_FEATURES, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.losses: list[Tensor] = []

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = (self.net(batch[0]) - batch[0].sum(-1, keepdim=True)).pow(2).mean()
        self.losses.append(loss.detach())
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.log("val_loss", self.net(batch[0]).pow(2).mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def _other_namespace(rank: int, folder: Path) -> Facts:
    facts: Facts = {}
    for name, epochs, path in (("whole", 2, None), ("half", 1, None), ("resumed", 2, "old.ckpt")):
        torch.manual_seed(11)
        model = _OldModule()
        trainer = _fit(model, pytorch_lightning.Trainer, path and folder / path, max_epochs=epochs)
        if name == "half":
            trainer.save_checkpoint(folder / "old.ckpt")
            (facts["metrics"],) = trainer.validate(model, batches(4), verbose=False)
        facts[name] = torch.stack(model.losses).cpu(), _weights(model)
        facts["strategy"] = type(trainer.strategy).__module__
    return facts


def _weights(model: Any) -> dict[str, Tensor]:
    return dict(model.state_dict())


def _all(rank: int, folder: Path) -> dict[str, Facts]:
    parts = (_dropout, _buffers, _other_namespace)
    return {part.__name__: part(rank, folder) for part in parts} | {"folder": {"is": folder}}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Facts]]:
    folder = tmp_path_factory.mktemp("ranks")
    return run_trainers(_all, folder, folder, num_ranks=NUM_RANKS)


@pytest.mark.parametrize("part", ["_dropout", "_other_namespace"])
def test_resumed_ranks_draw_the_dropout_they_would_have_drawn(
    ranks: list[dict[str, Facts]], part: str
) -> None:
    for facts in ranks:
        (whole, weights), (resumed, found) = facts[part]["whole"], facts[part]["resumed"]
        num_batches = 12 // NUM_RANKS
        assert torch.equal(resumed, whole[num_batches:])
        for name, weight in weights.items():
            assert torch.equal(found[name], weight), name
    assert not torch.equal(*(facts["_dropout"]["whole"][0] for facts in ranks))


def test_pytorch_lightning_trains_on_its_own_classes(ranks: list[dict[str, Facts]]) -> None:
    first, second = (facts["_other_namespace"] for facts in ranks)
    assert first["strategy"] == "lightning_gaudi.pytorch_lightning.strategies.ddp"
    assert first["metrics"] == second["metrics"] != {}


def test_ranks_evaluate_with_the_buffers_of_rank_0(ranks: list[dict[str, Facts]]) -> None:
    first, second = (facts["_buffers"]["default"] for facts in ranks)
    assert not torch.equal(first["training"][-1], second["training"][-1])
    for on_first, on_second in zip(first["validation"], second["validation"], strict=True):
        assert torch.equal(on_first, on_second)
    assert torch.equal(first["validation"][0], first["training"][-1])


def test_checkpoint_has_the_buffers_of_rank_0(ranks: list[dict[str, Facts]]) -> None:
    folder = ranks[0]["folder"]["is"]
    saved = torch.load(folder / "default.ckpt", weights_only=False)["state_dict"]
    mean = ranks[0]["_buffers"]["default"]["training"][-1]
    assert torch.equal(saved["net.1.running_mean"], mean)


def test_users_broadcast_buffers_is_kept(ranks: list[dict[str, Facts]]) -> None:
    """Then each forward begins with those of rank 0, and only the last update is the rank's own."""
    first, second = (facts["_buffers"]["broadcast"]["training"] for facts in ranks)
    by_default = ranks[1]["_buffers"]["default"]["training"]
    assert torch.equal(second[0], by_default[0])
    assert not torch.equal(second[1], by_default[1])
    assert torch.equal(first[1], ranks[0]["_buffers"]["default"]["training"][1])
