"""Compares the memory of a model's states on each card under each strategy with that under DDP.

States are weights, gradients and AdamW's moments: what the allocator of a card holds after a whole
step, when no activation is left. Each strategy trains in processes of its own. The model has eight
layers of 8 MiB in fp32. These are counts, the same on every machine and in every run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.multiprocessing
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.harness.interleaved import Effort
from benchmarks.harness.ranks import become_rank, free_ports
from benchmarks.harness.rows import RATIO, Row
from lightning_gaudi._core import vendor

WIDTH, NUM_BLOCKS, NUM_STEPS = 512, 8, 3
RANKS = (2, 4)
LIMIT = 1.1
"""By what factor memory may exceed one card's share of DDP's states, beside one layer."""


class Block(nn.Module):
    """Is the largest layer, and the one that a sharding strategy gathers at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.down(nn.functional.gelu(self.up(hidden)))


class Blocks(LightningModule):
    """Has eight such layers, which are made when the strategy is ready for them."""

    def __init__(self) -> None:
        super().__init__()
        self.net: nn.Module | None = None

    def configure_model(self) -> None:
        if self.net is not None:
            return
        self.net = nn.Sequential(*(Block() for _ in range(NUM_BLOCKS)))
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            for block in self.net:
                fully_shard(block, mesh=self.device_mesh["data_parallel"])
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: list[Tensor]) -> Tensor:
        assert self.net is not None
        return self.net(batch[0]).float().square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def _fsdp2(num_ranks: int) -> ModelParallelStrategy:
    return ModelParallelStrategy(data_parallel_size=num_ranks, tensor_parallel_size=1)


STRATEGIES: dict[str, Callable[[int], Any]] = {
    "ddp": lambda _: "ddp",
    "deepspeed_stage_1": lambda _: "deepspeed_stage_1",
    "deepspeed_stage_2": lambda _: "deepspeed_stage_2",
    "deepspeed_stage_3": lambda _: "deepspeed_stage_3",
    "fsdp": lambda _: FSDPStrategy(auto_wrap_policy={Block}),
    "FSDP2": _fsdp2,
}
"""The strategies by name, made for a number of cards, as a user passes them."""
SHARDED = ("deepspeed_stage_3", "fsdp", "FSDP2")
"""The strategies that promise to shard all states."""


class Memory(NamedTuple):
    """The memory of a card, in bytes."""

    states: int
    peak: int


class Watch(Callback):
    """Reads the allocator after the last step, and the peak since the first one."""

    memory: Memory

    def on_train_batch_start(
        self, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == 1:
            vendor.reset_peak_memory_stats()

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == NUM_STEPS - 1:
            stats = vendor.memory_stats()
            self.memory = Memory(stats["InUse"], stats["MaxInUse"])


def run_rank(rank: int, name: str, precision: str, num_ranks: int, port: int, results: Any) -> None:
    """Trains as one of the ranks; the first one reports."""
    become_rank(rank, num_ranks)
    os.environ["MASTER_PORT"] = str(port)
    watch = Watch()
    trainer = Trainer(
        accelerator="hpu",
        devices=num_ranks,
        strategy=STRATEGIES[name](num_ranks),
        precision=precision,  # type: ignore[arg-type]
        max_epochs=1,
        logger=False,
        callbacks=[watch],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = TensorDataset(torch.randn(2 * NUM_STEPS * num_ranks, WIDTH))
    trainer.fit(Blocks(), DataLoader(data, batch_size=2))
    if rank == 0:
        results.put(watch.memory)


def train(name: str, precision: str, num_ranks: int) -> Memory:
    """Trains with a strategy on so many cards, and returns the memory of the first one."""
    [port] = free_ports(1)
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.start_processes(  # type: ignore[attr-defined]
        run_rank, (name, precision, num_ranks, port, results), num_ranks, start_method="spawn"
    )
    memory: Memory = results.get()
    return memory


def layer_bytes() -> int:
    """Returns the size of the largest layer's weights in fp32."""
    return sum(4 * weight.numel() for weight in Block().parameters())


def measure(effort: Effort) -> list[Row]:
    """Measures every strategy in both precisions, on two cards and four."""
    return [
        row
        for precision in ("32-true", "bf16-mixed")
        for num_ranks in RANKS
        for row in compare(precision, num_ranks)
    ]


def compare(precision: str, num_ranks: int) -> list[Row]:
    """Returns the states of each strategy as a share of DDP's."""
    found = {name: train(name, precision, num_ranks) for name in STRATEGIES}
    ddp = found["ddp"].states
    limit = LIMIT / num_ranks + layer_bytes() / ddp
    return [
        Row(
            f"{precision}, {num_ranks} cards: {name}",
            memory.states / ddp,
            f"{RATIO} DDP's states",
            limit=limit if name in SHARDED else None,
            detail=f"{memory.states / 2**20:.1f} MiB, peak {memory.peak / 2**20:.1f} MiB",
        )
        for name, memory in found.items()
    ]
