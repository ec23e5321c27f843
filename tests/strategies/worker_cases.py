"""Trainings whose batches are made by workers, for tests of both kinds of Trainers."""

from __future__ import annotations

import os
from collections.abc import Callable

import lightning.pytorch as pl
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from lightning_gaudi._core.workers import start as worker_start
from tests.helpers.tiny import NUM_FEATURES, QUIET, TinyModule


class Drawn(Dataset):
    """Rows of which a part is drawn in the worker."""

    def __init__(self) -> None:
        self.scale = lambda index: index / 16

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = np.random.rand() + torch.rand(())
        return torch.full((NUM_FEATURES,), self.scale(index)) + drawn


class Recording(TinyModule):
    """Keeps its batches, on the CPU."""

    def __init__(self) -> None:
        super().__init__(dropout=0.0)
        self.batches: list[torch.Tensor] = []

    def training_step(self, batch, batch_idx):
        self.batches.append(batch.cpu())
        return super().training_step([batch], batch_idx)


def train(num_workers: int, context: str | None = None, **settings: object) -> list[torch.Tensor]:
    """The batches of two epochs, then the weights."""
    pl.seed_everything(3, workers=True, verbose=False)
    loader = DataLoader(
        Drawn(), 4, shuffle=True, num_workers=num_workers, multiprocessing_context=context
    )
    model = Recording()
    pl.Trainer(max_epochs=2, **QUIET, **settings).fit(model, loader)
    return [*model.batches, *(weight.detach().cpu() for weight in model.parameters())]


class Rows(Dataset):
    """Rows that are the same wherever they are made."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((NUM_FEATURES,), index / 16)


def train_on_ranks(rank: int) -> list[list[torch.Tensor]]:
    """The batches and weights of this rank, with no worker and with one."""
    found = []
    for num_workers in (0, 1):
        pl.seed_everything(3, verbose=False)
        model = Recording()
        trainer = pl.Trainer(accelerator="hpu", devices=2, max_epochs=1, **QUIET)
        trainer.fit(model, DataLoader(Rows(), 4, shuffle=True, num_workers=num_workers))
        found.append([*model.batches, *(weight.detach().cpu() for weight in model.parameters())])
    return found


class Failing(Rows):
    """Some rows that say which process has made them, and one that cannot be made."""

    def __init__(self, fails_at: int = 16) -> None:
        self.fails_at = fails_at

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.fails_at:
            raise LookupError(f"no row {index}")
        return torch.full((NUM_FEATURES,), float(os.getpid()), dtype=torch.float64)


def server() -> int:
    """The process that forks the workers."""
    return worker_start._server._forkserver_pid  # type: ignore[attr-defined, no-any-return]


class Ending(TinyModule):
    """Prints which processes there are, then does something at its third step."""

    def __init__(self, act: Callable[[list[int]], object]) -> None:
        super().__init__()
        self.act = act
        self.workers: list[int] = []

    def training_step(self, batch, batch_idx):
        self.workers.append(int(batch[0, 0]))
        if batch_idx == 2:
            workers = sorted(set(self.workers))
            print("processes", server(), *workers, flush=True)
            self.act(workers)
        return super().training_step([batch.float()], batch_idx)
