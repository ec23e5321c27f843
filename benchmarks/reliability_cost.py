"""What exact resume, the watchdog and the look at losses cost a training step of a tiny BERT.

Run with `lightning-gaudi simulate --cards 2 -- python benchmarks/reliability_cost.py`. The same two
processes train with all that is on by default and with nothing of it, in turns, with one thread
each, on their two cards; they part and connect anew between the turns. The last part counts in how
many steps the host waited for its card.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from interleaved import Result, exit_code, table
from lightning.pytorch import Callback, LightningModule, Trainer
from ranks import become_rank, free_ports
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForMaskedLM

from lightning_gaudi._core import vendor
from lightning_gaudi.strategies import HPUDDPStrategy

NUM_RANKS, NUM_WARMUP_STEPS, NUM_STEPS, NUM_ROUNDS = 2, 10, 50, 15
BATCH_SIZE, NUM_TOKENS, VOCABULARY = 8, 64, 1000
LOG_EVERY = 25
SIDES = ("on", "off")
LIMIT = 1.02


class TinyBert(LightningModule):
    """Two layers of 128."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 2}
        self.bert = BertForMaskedLM(BertConfig(vocab_size=VOCABULARY, num_hidden_layers=2, **sizes))

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.bert(input_ids=batch, labels=batch).loss
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


class Stopwatch(Callback):
    """Times the steps after the warm-up, and notes after which the host had waited."""

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
    """Train anew as one of the ranks; they part afterwards."""
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


def compare(ports: Iterator[int]) -> tuple[list[Result], set[int]]:
    """Time both sides in turns; also the steps in which the host waited with all on."""
    for side in SIDES:
        train(side, next(ports))
    found: dict[str, list[Stopwatch]] = {side: [] for side in SIDES}
    for index in range(NUM_ROUNDS):
        for side in SIDES if index % 2 else reversed(SIDES):
            found[side].append(train(side, next(ports)))
    results = []
    for name, kind in (("tiny BERT, 2 cards, a step", "wall"), ("the same, CPU time", "cpu")):
        on, off = ([getattr(each, kind) / NUM_STEPS for each in found[side]] for side in SIDES)
        ratio = median(mine / theirs for mine, theirs in zip(on, off, strict=True))
        results.append(Result(name, median(on), median(off), ratio, LIMIT))
    return results, {step for each in found["on"] for step in each.waited_in}


def run_rank(rank: int, ports: list[int], results: Any) -> None:
    """Measure as one of the ranks; the first one reports."""
    become_rank(rank, NUM_RANKS)
    found = compare(iter(ports))
    if rank == 0:
        results.put(found)


def main() -> int:
    """Measure, print a table; 1 if it costs too much, or the host waits in another step."""
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    ports = free_ports(2 * NUM_ROUNDS + 2)
    torch.multiprocessing.spawn(run_rank, (ports, results), NUM_RANKS)
    found, waited_in = results.get()
    print(table(found, "on", "off"))
    others = {step for step in waited_in if step % LOG_EVERY}
    print(f"The host waited in the steps {sorted(waited_in)}; it logs each {LOG_EVERY}.")
    return exit_code(found) or int(bool(others))


if __name__ == "__main__":
    sys.exit(main())
