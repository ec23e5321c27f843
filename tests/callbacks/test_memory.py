"""What holds a card's memory, against sizes counted by hand."""

from __future__ import annotations

import csv
import gc
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.loggers import CSVLogger

from lightning_gaudi import vendor
from lightning_gaudi.callbacks import MemoryMonitor
from lightning_gaudi.hardware import GAUDIS
from tests.helpers.tiny import QUIET, batches
from tests.helpers.trainers import run_trainers

WIDTH = 64
WEIGHTS = 4 * (8 * WIDTH + WIDTH * WIDTH)


class Model(LightningModule):
    """Two layers, and activations of a known size."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, WIDTH, bias=False)
        self.second = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.num_syncs: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        rows = batch[0].repeat(1000, 1)
        return self.second(self.first(rows).exp()).square().mean()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.num_syncs.append(vendor.metric("host_sync")["TotalNumber"])  # type: ignore[index]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def _logged(folder: Path, **settings: Any) -> tuple[list[dict[str, float]], Model]:
    """What is logged in two of six steps, with the model; the peak is that of these."""
    gc.collect()
    torch.hpu.reset_peak_memory_stats()
    already = vendor.memory_stats()["InUse"]  # of other tests in this process
    logger = CSVLogger(folder, version=0)
    defaults = {"accelerator": "hpu", "devices": 1, "max_epochs": 1, "log_every_n_steps": 3}
    callbacks = [MemoryMonitor()]
    trainer = pl.Trainer(
        **{**QUIET, **defaults, "logger": logger, "callbacks": callbacks, **settings}
    )
    model = Model()
    trainer.fit(model, batches(6 * trainer.world_size))
    if trainer.global_rank:
        return [], model  # where Lightning's loggers do nothing
    files = folder.rglob("metrics.csv")  # none where nothing is logged
    rows = [row for file in files for row in csv.DictReader(file.read_text().splitlines())]
    return [
        {name.partition("/")[2]: float(value) for name, value in row.items() if "/" in name}
        | {"already": already}
        for row in rows
    ], model


def test_sizes_are_those_of_the_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[str]()
    monkeypatch.setattr("lightning_gaudi.callbacks.memory.rank_zero_info", told.append)
    rows, _ = _logged(tmp_path)
    assert len(rows) == 2
    weights = f"{WEIGHTS / 2**20:.1f} MiB"
    assert f"{rows[-1]['peak'] / 2**20:.1f} of 96891 MiB in use at a time: weights" in told[0]
    assert f"weights {weights}, gradients {weights}" in told[0]
    for row in rows:
        assert row["weights"] == row["gradients"] == WEIGHTS
        # Adam's steps are on the card, or on the host.
        assert 2 * WEIGHTS <= row["optimizer_state"] <= 2 * WEIGHTS + 64
        assert row["communication_buckets"] == 0
        stays = row["weights"] + row["gradients"] + row["optimizer_state"]
        assert row["used"] == stays + row["rest"]
        assert row["peak"] == stays + row["peak_rest"]
        # 4000 rows of the first layer, of exp and of the second layer at once, and of gradients.
        activations = 3 * 4 * 4000 * WIDTH
        assert activations <= row["peak_rest"] - row["already"] < 3 * activations
        # What the card's allocator takes for itself, without a tensor, is among the rest.
        assert row["rest"] - 5_767_296 < activations / 10
        assert row["limit"] == GAUDIS["gaudi2"].memory_bytes


@pytest.mark.slow
def test_nobody_waits_for_it(tmp_path: Path) -> None:
    _, with_it = _logged(tmp_path / "with", log_every_n_steps=1)
    _, without = _logged(tmp_path / "without", log_every_n_steps=1, callbacks=[])
    waits = [
        [after - before for before, after in pairwise(each)]
        for each in (with_it.num_syncs, without.num_syncs)
    ]
    assert waits[0] == waits[1]


def test_another_device_is_left_alone(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, version=0)
    trainer = pl.Trainer(
        **{**QUIET, "logger": logger}, accelerator="cpu", max_steps=2, callbacks=[MemoryMonitor()]
    )
    trainer.fit(_OnCpu(), batches(2))
    assert not list(tmp_path.rglob("metrics.csv"))


class _OnCpu(Model):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        pass


def _sharded(rank: int, folder: Path, strategy: str) -> list[dict[str, float]]:
    return _logged(folder, devices=2, strategy=strategy)[0]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "share"), [("ddp", 1), ("fsdp", 2)])
def test_of_shards_a_rank_counts_its_own(tmp_path: Path, strategy: str, share: int) -> None:
    rows, _ = run_trainers(_sharded, tmp_path, tmp_path, strategy)
    assert rows
    for row in rows:
        assert row["weights"] == row["gradients"] == WEIGHTS / share
        assert 2 * WEIGHTS / share <= row["optimizer_state"] <= 2 * WEIGHTS / share + 64
        assert row["peak"] >= row["used"] >= sum(row[name] for name in ("weights", "gradients"))
