"""Measures what the measuring callbacks add to a training step of a tiny BERT, and their waits.

In one fit, the callbacks are called in every other log interval, so that both sides have the same
model, loader and logger. Neighbouring intervals are compared. Their ratios scatter by some
hundredths, which is too much for a limit of one hundredth, so the limit is for the CPU time within
the callbacks themselves.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from statistics import median
from time import perf_counter, process_time, thread_time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import DeviceStatsMonitor, ThroughputMonitor
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from benchmarks.harness.interleaved import Effort
from benchmarks.harness.rows import RATIO, Row, ratio
from benchmarks.tiny import BATCH_SIZE, NUM_TOKENS, VOCABULARY, TinyBert
from lightning_gaudi import vendor
from lightning_gaudi.callbacks import (
    CompilationAlarm,
    GraphMonitor,
    MemoryMonitor,
    TokenThroughput,
)

LOG_EVERY, NUM_PAIRS, LIMIT = 25, 24, 1.01


class LoggedBert(TinyBert):
    """Logs its loss, as most modules do; the wait for it is on both sides."""

    flops_per_batch = 6 * BATCH_SIZE * NUM_TOKENS * 528_000

    def training_step(self, batch: Any) -> torch.Tensor:
        loss = super().training_step(batch["input_ids"])
        self.log("loss", loss)
        return loss


class InTurns(Callback):
    """Calls other callbacks in every other log interval only, and times all intervals."""

    def __init__(self, callbacks: list[Callback]) -> None:
        self.callbacks = callbacks
        self.within_s = 0.0
        self.wall: dict[bool, list[float]] = {True: [], False: []}
        self.cpu: dict[bool, list[float]] = {True: [], False: []}
        self.waits: dict[bool, set[tuple[int, int]]] = {True: set(), False: set()}
        self._begin = (0.0, 0.0)
        self._num_waits = 0.0
        self._is_asked = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for callback in self.callbacks:
            callback.setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for callback in self.callbacks:
            callback.on_fit_start(trainer, pl_module)
            callback.on_train_start(trainer, pl_module)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        interval, index = divmod(batch_idx, LOG_EVERY)
        waits = float(vendor.metric("host_sync")["TotalNumber"])  # type: ignore[index]
        if interval >= 2 and waits > self._num_waits:  # the first two are the warm-up
            self.waits[self._is_asked].add(((index or LOG_EVERY), int(waits - self._num_waits)))
        self._num_waits = waits
        if index == 0:
            now = (perf_counter(), process_time())
            if interval > 2:
                for times, end, begin in zip((self.wall, self.cpu), now, self._begin, strict=True):
                    times[self._is_asked].append((end - begin) / LOG_EVERY)
            self._begin, self._is_asked = now, interval % 2 == 1
        self._ask("on_train_batch_start", interval, trainer, pl_module, batch, batch_idx)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        interval = batch_idx // LOG_EVERY
        self._ask("on_train_batch_end", interval, trainer, pl_module, outputs, batch, batch_idx)

    def _ask(self, hook: str, interval: int, *args: Any) -> None:
        if self._is_asked:
            begin = thread_time()
            for callback in self.callbacks:
                getattr(callback, hook)(*args)
            if interval >= 2:
                self.within_s += thread_time() - begin


def train(callbacks: list[Callback], num_pairs: int) -> InTurns:
    """Trains with callbacks in every other log interval, and returns the times."""
    torch.manual_seed(0)
    num_steps = (2 * num_pairs + 2) * LOG_EVERY + 1
    samples = torch.randint(VOCABULARY, (BATCH_SIZE * num_steps, NUM_TOKENS))
    turns = InTurns(callbacks)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="hpu",
            devices=1,
            max_epochs=1,
            log_every_n_steps=LOG_EVERY,
            logger=CSVLogger(folder),
            callbacks=[turns],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(LoggedBert(), DataLoader(samples, batch_size=BATCH_SIZE, collate_fn=_batch))
    return turns


def _batch(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.stack(rows)}


def _rows(batch: Any) -> int:
    return len(batch["input_ids"])


SIDES: dict[str, Callable[[], list[Callback]]] = {
    "throughput, alarm, memory": lambda: [TokenThroughput(), CompilationAlarm(), MemoryMonitor()],
    "GraphMonitor": lambda: [GraphMonitor()],
    "Lightning's two monitors": lambda: [
        ThroughputMonitor(_rows, window_size=10),
        DeviceStatsMonitor(),
    ],
}


def measure(effort: Effort) -> list[Row]:
    """Returns what each set of callbacks adds, and how often the host waits for it."""
    torch.set_num_threads(1)
    rows = []
    for name, make in SIDES.items():
        turns = train(make(), effort.rounds(NUM_PAIRS))
        for label, times in ((name, turns.wall), (f"{name}: CPU time", turns.cpu)):
            rows.append(ratio(label, times[True], times[False]))
        within_s = turns.within_s / (len(turns.cpu[True]) * LOG_EVERY)
        share = within_s / median(turns.cpu[False])
        rows.append(
            Row(f"{name}: CPU time within", 1 + share, RATIO, limit=LIMIT, detail=f"{share:.2%}")
        )
        rows.append(_added_waits(name, turns))
    return rows


def _added_waits(name: str, turns: InTurns) -> Row:
    """Returns the number of steps of an interval whose waits differ with the callbacks.

    A wait is noted as the step of the interval and the number of waits in it.
    """
    added = len(turns.waits[True] ^ turns.waits[False])
    waits = ", ".join(f"{count} in step {step}" for step, count in sorted(turns.waits[True]))
    detail = f"the host waits: {waits or 'never'}"
    return Row(f"{name}: steps that wait otherwise", added, "steps", limit=0, detail=detail)
