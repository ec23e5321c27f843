"""Compares a DDP step on 2 simulated cards with one of Lightning's `ddp` on the CPU, with gloo.

The same two processes train on both sides in turns, with one thread each. Between the turns they
disconnect and connect anew, so that only the process group of the side that is timed exists. The
tiny MLP is trained with the defaults, where the plugin compiles and the CPU does not, and then
without compilation on both sides. Last, the waits of the host are counted in steps that are no log
steps.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.multiprocessing
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.harness.interleaved import Effort, in_turns
from benchmarks.harness.ranks import become_rank, free_ports
from benchmarks.harness.rows import Row, ratio
from lightning_gaudi._core import vendor
from lightning_gaudi.compilation.settings import VARIABLE

NUM_RANKS = 2
SIDES = ("hpu", "cpu")
LIMIT = 1.1


class TinyMlp(LightningModule):
    """Has layers of 16, 32 and 4 on 8 samples, to measure the cost of calls rather than of work."""

    num_warmup_steps, num_steps, num_rounds = 20, 200, 11

    def __init__(self, *, logs: bool = False) -> None:
        super().__init__()
        self.logs = logs
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    @staticmethod
    def batch() -> tuple[Tensor, ...]:
        return torch.randn(8, 16), torch.randint(4, (8,))

    def training_step(self, batch: list[Tensor]) -> Tensor:
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.layers(inputs), labels)
        if self.logs:
            self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class BertBaseLayer(TinyMlp):
    """Has one layer of BERT base, on 8 sequences of 128 tokens."""

    num_warmup_steps, num_steps, num_rounds = 2, 4, 7

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig
        from transformers.models.bert.modeling_bert import BertLayer

        self.layers = BertLayer(BertConfig(attn_implementation="sdpa"))

    @staticmethod
    def batch() -> tuple[Tensor, ...]:
        return (torch.randn(8, 128, 768),)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        output = self.layers(batch[0])
        return (output[0] if isinstance(output, tuple) else output).square().mean()


class Stopwatch(Callback):
    """Times the steps after the warm-up, without waiting for the device."""

    def __init__(self, start: int) -> None:
        self.first, self.start, self.seconds = start, 0.0, 0.0

    def on_train_batch_start(
        self, trainer: Trainer, module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        if batch_idx == self.first:
            self.start = perf_counter()

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        self.seconds = perf_counter() - self.start


class HostWaits(Callback):
    """Counts the waits of the host between the warm-up and the end of the last step.

    These are each `item` of a tensor on the model's device, and each collective that is neither
    asynchronous nor on a card, where it is queued. On a card, all other waits that the card counts
    are added. Optimizers' counters of steps are on the CPU in any case, and do not count.
    """

    NAMES = ("barrier", "all_reduce", "broadcast", "broadcast_object_list", "all_gather_object")

    def __init__(self, start: int) -> None:
        self.first = start
        self.counts: Counter[str] = Counter()
        self._is_counting = False
        self._device = ""

    def on_train_batch_start(
        self, trainer: Trainer, module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        if batch_idx == self.first:
            self._is_counting, self._device = True, module.device.type
            self._count_syncs(-1)

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx + 1 == trainer.num_training_batches:
            self._is_counting = False
            self._count_syncs(1)

    def _count_syncs(self, sign: int) -> None:
        if self._device == "hpu":
            metric = vendor.metric("host_sync")
            assert metric is not None
            self.counts["host_sync"] += sign * metric["TotalNumber"]

    @contextmanager
    def patched(self) -> Iterator[None]:
        patches = [mock.patch.object(dist, name, self._counting(name)) for name in self.NAMES]
        item = Tensor.item

        def counting_item(tensor: Tensor) -> Any:
            caller = sys._getframe(1).f_globals["__name__"]
            is_one = tensor.device.type == self._device and not caller.startswith("torch.optim")
            self.counts["Tensor.item"] += self._is_counting and is_one
            return item(tensor)

        for patch in [*patches, mock.patch.object(Tensor, "item", counting_item)]:
            patch.start()
        yield
        mock.patch.stopall()

    def _counting(self, name: str) -> Callable[..., Any]:
        original = getattr(dist, name)

        def collective(*args: Any, **kwargs: Any) -> Any:
            is_queued = args and isinstance(args[0], Tensor) and args[0].device.type != "cpu"
            if not is_queued and not kwargs.get("async_op", False):
                self.counts[name] += self._is_counting
            return original(*args, **kwargs)

        return collective


def fit(
    model: TinyMlp, side: str, callback: Callback, port: int, *, log_every: int | None = None
) -> None:
    """Trains this rank of one side; the ranks connect before, and disconnect afterwards."""
    os.environ["MASTER_PORT"] = str(port)
    num_batches = model.num_warmup_steps + model.num_steps
    torch.manual_seed(0)
    columns = zip(*(model.batch() for _ in range(num_batches * NUM_RANKS)), strict=True)
    samples = TensorDataset(*(torch.cat(column) for column in columns))
    trainer = Trainer(
        accelerator=side,
        devices=NUM_RANKS,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        callbacks=[callback],
        log_every_n_steps=log_every,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(samples, batch_size=len(model.batch()[0])))
    dist.destroy_process_group()


def seconds_per_step(kind: type[TinyMlp], side: str, port: int) -> float:
    """Trains anew, and returns the mean time of a step."""
    stopwatch = Stopwatch(kind.num_warmup_steps)
    fit(kind(), side, stopwatch, port)
    return stopwatch.seconds / kind.num_steps


def compare(
    name: str, kind: type[TinyMlp], ports: Iterator[int], effort: Effort, *, compiles: bool = True
) -> Row:
    """Times both sides in turns, with or without the plugin's compilation."""
    if not compiles:
        os.environ[VARIABLE] = "none"
    try:
        return _compare(name, kind, ports, effort)
    finally:
        # The other variables stay: a fit has noted there which card this process drives.
        os.environ.pop(VARIABLE, None)


def _compare(name: str, kind: type[TinyMlp], ports: Iterator[int], effort: Effort) -> Row:
    for side in SIDES:
        seconds_per_step(kind, side, next(ports))
    times = in_turns(
        SIDES,
        effort.rounds(kind.num_rounds),
        lambda side: seconds_per_step(kind, side, next(ports)),
    )
    return ratio(name, times["hpu"], times["cpu"], limit=LIMIT)


def count_waits(side: str, *, logs: bool, ports: Iterator[int]) -> dict[str, float]:
    """Returns the number of the host's waits in a step, by kind."""
    model = TinyMlp(logs=logs)
    waits = HostWaits(model.num_warmup_steps)
    with waits.patched():
        # No step is a log step, in which reading the loss waits for it.
        log_every = model.num_warmup_steps + model.num_steps + 1
        fit(model, side, waits, next(ports), log_every=log_every)
    return {name: count / model.num_steps for name, count in waits.counts.items() if count}


def run_rank(rank: int, ports: list[int], effort: Effort, results: Any) -> None:
    """Measures everything as one of the ranks; the first one reports."""
    become_rank(rank, NUM_RANKS)
    left = iter(ports)
    rows = [
        compare("DDP, tiny MLP, by default", TinyMlp, left, effort),
        compare("DDP, tiny MLP, as written", TinyMlp, left, effort, compiles=False),
        compare("DDP, BERT-base layer (8 x 128)", BertBaseLayer, left, effort),
    ]
    for logs in (False, True):
        on_hpu, on_cpu = (count_waits(side, logs=logs, ports=left) for side in SIDES)
        rows.append(
            Row(
                f"the host waits, {'logging with sync_dist=True' if logs else 'logging nothing'}",
                sum(on_hpu.values()),
                "a step",
                limit=0,
                detail=f"Lightning's on the CPU: {_told(on_cpu)}",
            )
        )
    if rank == 0:
        results.put(rows)


def _told(counts: dict[str, float]) -> str:
    return ", ".join(f"{count:.2f} {name}" for name, count in counts.items()) or "never"


def measure(effort: Effort) -> list[Row]:
    """Starts the ranks, and returns the rows of the first one."""
    context = torch.multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    torch.multiprocessing.spawn(run_rank, (free_ports(150), effort, results), NUM_RANKS)
    rows: list[Row] = results.get()
    return rows
