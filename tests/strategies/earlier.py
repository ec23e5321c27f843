"""Fits that save in the middle of an epoch, for checkpoints that other versions have written.

`python -m tests.strategies.earlier FOLDER [NAME ...]` writes those of `tests/fixtures/checkpoints`,
on simulated cards (LIGHTNING_GAUDI_SIMULATE), by whatever version of lightning_gaudi is there.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tests.helpers.trainers import run_trainers


class Kind(NamedTuple):
    """Who trains, and on how many cards."""

    strategy: str
    num_ranks: int = 1
    in_fabric: bool = False


KINDS = {
    "single": Kind("auto"),
    "fsdp": Kind("fsdp"),
    "deepspeed_stage_2": Kind("deepspeed_stage_2"),
    "ddp": Kind("ddp", 2),
    "fsdp2": Kind("hpu_model_parallel", 2),
    "fabric": Kind("auto", in_fabric=True),
    "fabric_fsdp": Kind("fsdp", 2, in_fabric=True),
}
SAVED_AT, NUM_STEPS = 5, 12
"""Of 8 steps an epoch on one card, and 4 on two."""


class Fit(NamedTuple):
    """What a rank has trained on and drawn, and its weights in the end."""

    rows: list[list[int]]
    draws: list[float]
    weights: list[Tensor]


class Module(pl.LightningModule):
    """Notes which rows it trains on, and what it draws."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.rows: list[list[int]] = []
        self.draws: list[float] = []

    def configure_model(self) -> None:
        if self.device_mesh is not None:
            from torch.distributed.fsdp import fully_shard

            for layer in (self.layers[0], self.layers[2], self.layers):
                fully_shard(layer, mesh=self.device_mesh["data_parallel"])

    def forward(self, batch: list[Tensor]) -> Tensor:
        rows, values = batch
        self.rows.append(rows.tolist())
        self.draws.append(torch.rand(1).item())
        return (self.layers(values).squeeze(-1) - self.draws[-1]).square().mean()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self(batch)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


class _SaveOnce(pl.Callback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == SAVED_AT:
            trainer.save_checkpoint(self.path)


def _loader() -> DataLoader[Any]:
    values = torch.linspace(-1, 1, 128).reshape(32, 4)
    data = [(row, values[row]) for row in range(32)]
    return DataLoader(data, batch_size=4, shuffle=True)  # type: ignore[arg-type]


def _strategy(kind: Kind) -> Any:
    if kind.strategy != "fsdp":
        return kind.strategy
    if kind.in_fabric:
        from lightning_gaudi.fabric.strategies import HPUFSDPStrategy as Strategy
    else:
        from lightning_gaudi.strategies import HPUFSDPStrategy as Strategy
    return Strategy(state_dict_type="sharded")


def _fit(kind: Kind, folder: Path, path: Path, *, resumes: bool) -> Module:
    trainer = pl.Trainer(
        accelerator="hpu",
        devices=kind.num_ranks,
        strategy=_strategy(kind),
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
    trainer.fit(module, _loader(), ckpt_path=str(path) if resumes else None)
    return module


def _loop(kind: Kind, path: Path, *, resumes: bool) -> Module:
    """The same with Fabric, whose user saves and restores random numbers."""
    fabric = Fabric(accelerator="hpu", devices=kind.num_ranks, strategy=_strategy(kind))
    fabric.launch()
    module = Module()
    fabric.seed_everything(2)
    model, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters(), lr=0.1))
    loader = fabric.setup_dataloaders(_loader())
    state = {"model": model, "optimizer": optimizer, "loader": loader, "step": 0, "random": None}
    if resumes:
        fabric.load(path, state)
        torch.set_rng_state(state["random"])
    while state["step"] < NUM_STEPS:
        for batch in loader:
            fabric.backward(model(batch))
            optimizer.step()
            optimizer.zero_grad()
            state |= {"step": state["step"] + 1, "random": torch.get_rng_state()}
            if state["step"] == SAVED_AT and not resumes:
                fabric.save(path, state)
            if state["step"] == NUM_STEPS:
                break
    return module


def _train(rank: int, name: str, folder: Path, path: Path, resumes: bool) -> Fit:
    warnings.simplefilter("ignore")
    kind = KINDS[name]
    if kind.in_fabric:
        module = _loop(kind, path, resumes=resumes)
    else:
        module = _fit(kind, folder, path, resumes=resumes)
    weights = [
        getattr(each, "to_local", lambda each=each: each)().detach().cpu().clone()
        for each in module.parameters()
    ]
    return Fit(module.rows, module.draws, weights)


def train(name: str, folder: Path, path: Path, *, resumes: bool) -> list[Fit]:
    """Trains anew, saving to `path` on the way, or goes on from there; what each rank did."""
    return run_trainers(
        _train, folder, name, folder, path, resumes, num_ranks=KINDS[name].num_ranks
    )


def main(folder: Path, names: list[str]) -> None:
    """Writes a checkpoint of each kind, and what its fit did."""
    file = folder / "fits.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    for name in names or KINDS:
        with tempfile.TemporaryDirectory() as scratch:
            fits = train(name, Path(scratch), folder / name, resumes=False)
        found[name] = [{"rows": fit.rows, "draws": fit.draws} for fit in fits]
    file.write_text(json.dumps(found))


if __name__ == "__main__":
    from tests.strategies import earlier  # by the name that ranks know

    earlier.main(Path(sys.argv[1]).resolve(), sys.argv[2:])
