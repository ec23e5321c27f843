"""A fit that saves in the middle of an epoch, for checkpoints that other versions have written.

`python -m tests.strategies.earlier FOLDER` writes those of tests/fixtures/checkpoints, by whatever
version of lightning_gaudi is imported.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

STRATEGIES: dict[str, dict[str, Any]] = {
    "single": {},
    "fsdp": {"state_dict_type": "sharded"},
    "deepspeed_stage_2": {},
}
SAVED_AT, NUM_STEPS = 5, 12
"""Of 8 steps an epoch."""


class Module(pl.LightningModule):
    """Notes which rows it trains on, and what it draws."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.rows: list[list[int]] = []
        self.draws: list[float] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        rows, values = batch
        self.rows.append(rows.tolist())
        self.draws.append(torch.rand(1).item())
        return (self.layers(values).squeeze(-1) - self.draws[-1]).square().mean()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


class _SaveOnce(pl.Callback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == SAVED_AT:
            trainer.save_checkpoint(self.path)


def _strategy(name: str) -> Any:
    if name == "single":
        return "auto"
    if name == "fsdp":
        from lightning_gaudi.strategies import HPUFSDPStrategy

        return HPUFSDPStrategy(**STRATEGIES[name])
    return name


def fit(name: str, folder: Path, path: Path, *, resumes: bool) -> Module:
    """Trains anew, saving to `path` on the way, or goes on from there."""
    values = torch.linspace(-1, 1, 128).reshape(32, 4)
    data = [(row, values[row]) for row in range(32)]
    trainer = pl.Trainer(
        accelerator="hpu",
        devices=1,
        strategy=_strategy(name),
        max_steps=NUM_STEPS,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[] if resumes else [_SaveOnce(path)],
    )
    module = Module()
    pl.seed_everything(2)
    loader: DataLoader[Any] = DataLoader(data, batch_size=4, shuffle=True)  # type: ignore[arg-type]
    trainer.fit(module, loader, ckpt_path=str(path) if resumes else None)
    return module


def main(folder: Path) -> None:
    """Writes a checkpoint of each strategy, and what its fit did."""
    found = {}
    for name in STRATEGIES:
        module = fit(name, folder, folder / name, resumes=False)
        found[name] = {"rows": module.rows, "draws": module.draws}
    (folder / "fits.json").write_text(json.dumps(found))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]).resolve())
