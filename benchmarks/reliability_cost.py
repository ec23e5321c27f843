"""Measures what exact resume, the watchdog and the check of losses add to a step of a tiny BERT.

The same two processes train with the default reliability settings and with none, in turns, with one
thread each, on their two cards. Between the turns they disconnect and connect anew. The last row
counts the steps, other than log steps, in which the host waited for its card.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from time import perf_counter, process_time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader

from benchmarks.harness.interleaved import Effort, in_turns
from benchmarks.harness.ranks import become_rank, free_ports
from benchmarks.harness.rows import Row, ratio
from benchmarks.tiny import BATCH_SIZE, NUM_TOKENS, VOCABULARY, TinyBert
from lightning_gaudi._core import vendor
from lightning_gaudi.strategies import HPUDDPStrategy

NUM_RANKS, NUM_WARMUP_STEPS, NUM_STEPS, NUM_ROUNDS = 2, 10, 50, 15
LOG_EVERY = 25
SIDES = ("on", "off")
LIMIT = 1.02


class Stopwatch(Callback):
    """Times the steps after the warm-up, and notes in which of them the host waited."""

    def __init__(self) -> None:
        self.wall, self.cpu = 0.0, 0.0
        self.waited_in: list[int] = []
        self._num_waits = 0

    def on_train_batch_start(
        self, trainer: Trainer, module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        waits = _num_waits()
        if batch_idx == NUM_WARMUP_STEPS:
            self.wall, self.cpu = -perf_counter(), -process_time()
        elif batch_idx > NUM_WARMUP_STEPS and waits > self._num_waits:
            self.waited_in.append(batch_idx)  # counted from 1 on: the step before this one
        if batch_idx == NUM_WARMUP_STEPS + NUM_STEPS:
            self.wall += perf_counter()
            self.cpu += process_time()
        self._num_waits = waits


def _num_waits() -> int:
    return int(vendor.metric("host_sync")["TotalNumber"])  # type: ignore[index]


def train(side: str, port: int) -> Stopwatch:
    """Trains anew as one of the ranks, which disconnect afterwards."""
    os.environ["MASTER_PORT"] = str(port)
    torch.manual_seed(0)
    num_steps = NUM_WARMUP_STEPS + NUM_STEPS + 1
    samples = torch.randint(VOCABULARY, (BATCH_SIZE * NUM_RANKS * num_steps, NUM_TOKENS))
    stopwatch = Stopwatch()
    trainer = Trainer(
        accelerator="hpu",
        devices=NUM_RANKS,
        strategy=HPUDDPStrategy(reliability=side),
        max_epochs=1,
        log_every_n_steps=LOG_EVERY,
        logger=False,
        callbacks=[stopwatch],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(TinyBert(), DataLoader(samples, batch_size=BATCH_SIZE, shuffle=True))
    dist.destroy_process_group()
    return stopwatch


def compare(ports: Iterator[int], effort: Effort) -> list[Row]:
    """Times both sides in turns, and counts the steps in which the host waited with all on."""
    for side in SIDES:
        train(side, next(ports))
    found = in_turns(SIDES, effort.rounds(NUM_ROUNDS), lambda side: train(side, next(ports)))
    rows = []
    for name, kind in (("tiny BERT, 2 cards, a step", "wall"), ("the same, CPU time", "cpu")):
        on, off = ([getattr(each, kind) / NUM_STEPS for each in found[side]] for side in SIDES)
        rows.append(ratio(name, on, off, limit=LIMIT))
    waited_in = sorted({step for each in found["on"] for step in each.waited_in})
    others = [step for step in waited_in if step % LOG_EVERY]
    detail = f"it waited in {waited_in}, and logs each {LOG_EVERY}"
    name = "steps that are no log steps, in which the host waited"
    return [*rows, Row(name, len(others), "steps", limit=0, detail=detail)]


def run_rank(rank: int, ports: list[int], effort: Effort, results: Any) -> None:
    """Measures as one of the ranks; the first one reports."""
    become_rank(rank, NUM_RANKS)
    rows = compare(iter(ports), effort)
    if rank == 0:
        results.put(rows)


def measure(effort: Effort) -> list[Row]:
    """Starts the ranks, and returns the rows of the first one."""
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    ports = free_ports(2 * NUM_ROUNDS + 2)
    torch.multiprocessing.spawn(run_rank, (ports, effort, results), NUM_RANKS)
    rows: list[Row] = results.get()
    return rows
