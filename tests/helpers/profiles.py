"""Profiled runs, and what their summaries, events and traces say."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from torch import Tensor

from .tiny import TinyModule, batches, hpu_trainer

NUM_STEPS = 8

QUIET_RESULTS: dict[str, dict[str, Any]] = {
    "validate": {"verbose": False},
    "test": {"verbose": False},
    "predict": {"return_predictions": False},
}
"""Arguments of the Trainer's methods, for output that a test does not look at."""


class ReadingModule(TinyModule):
    """Waits for the device so many times in each training step, and has a range of its own."""

    def __init__(self, num_reads: int = 1, fails_at: int | None = None) -> None:
        super().__init__()
        self.num_reads = num_reads
        self.fails_at = fails_at

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == self.fails_at:
            raise ValueError("as asked")
        with self.trainer.profiler.profile("my own range"):
            loss = super().training_step(batch, batch_idx)
        for _ in range(self.num_reads):
            loss.item()
        return loss


def fit(
    folder: Path, profiler: Any = "hpu", module: pl.LightningModule | None = None, **settings: Any
) -> pl.Trainer:
    settings = {"max_epochs": 1, "default_root_dir": folder, **settings}
    trainer = hpu_trainer(profiler=profiler, **settings)
    trainer.fit(module or ReadingModule(), batches(NUM_STEPS))
    return trainer


def table(summary: str) -> dict[str, list[str]]:
    """Row -> median, maximum, total, as they are shown."""
    rows = summary.split("Trace of")[0].split("No trace")[0].splitlines()[2:]
    return {row[:20].strip(): [row[at : at + 12].strip() for at in (20, 32, 44)] for row in rows}


def read_trace(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def ranges(events: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    found = [event for event in events if event["ph"] == "X" and event["name"] == name]
    return sorted((event["ts"], event["ts"] + event["dur"]) for event in found)


def event_counts(profiler: Any) -> Counter[str]:
    """Name -> number of the events in a profiler's last trace."""
    assert profiler.function_events is not None
    return Counter(event.name for event in profiler.function_events)
