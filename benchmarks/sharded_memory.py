"""What the states of a model take on each card, by strategy, against those of DDP.

Run with `lightning-gaudi simulate --cards 4 -- python benchmarks/sharded_memory.py`. States are
weights, gradients and AdamW's averages: what the allocator of a card holds after a whole step, when
no activation is left. Each strategy trains in processes of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.multiprocessing
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from ranks import become_rank, free_ports
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from lightning_gaudi._core import vendor

WIDTH, NUM_BLOCKS, NUM_STEPS = 512, 8, 3
RANKS = (2, 4)
LIMIT = 1.1
"""How much of DDP's states divided by the number of cards may be taken, beside one layer."""


class Block(nn.Module):
    """The largest layer: what a sharding strategy gathers at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.down(nn.functional.gelu(self.up(hidden)))


class Blocks(LightningModule):
    """Eight such layers, made where the strategy is ready for them."""

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
"""By name, for so many cards, as a user passes them."""
SHARDED = ("deepspeed_stage_3", "fsdp", "FSDP2")
"""Those that promise to shard all states."""


class Memory(NamedTuple):
    """Of a card, in bytes."""

    states: int
    peak: int


class Watch(Callback):
    """Asks the allocator after the last step, and for the peak since the first one."""

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
    """Train as one of the ranks; the first one reports."""
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


def measure(name: str, precision: str, num_ranks: int) -> Memory:
    """Train with a strategy on so many cards."""
    [port] = free_ports(1)
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.start_processes(  # type: ignore[attr-defined]
        run_rank, (name, precision, num_ranks, port, results), num_ranks, start_method="spawn"
    )
    return results.get()


def layer_bytes() -> int:
    """The weights of the largest layer in fp32."""
    return sum(4 * weight.numel() for weight in Block().parameters())


def compare(precision: str, num_ranks: int) -> bool:
    """Measure all strategies, print a table, and say whether those that shard keep the limit."""
    found = {name: measure(name, precision, num_ranks) for name in STRATEGIES}
    ddp = found["ddp"].states
    allowed = LIMIT * ddp / num_ranks + layer_bytes()
    print(f"\n{precision}, {num_ranks} cards: at most {allowed / 2**20:.1f} MiB of states")
    print(f"{'strategy':20} {'states':>10} {'of DDP':>8} {'peak':>10}")
    for name, memory in found.items():
        verdict = "" if name not in SHARDED else "met" if memory.states <= allowed else "NOT MET"
        print(
            f"{name:20} {memory.states / 2**20:6.1f} MiB {memory.states / ddp:8.3f} "
            f"{memory.peak / 2**20:6.1f} MiB  {verdict}"
        )
    return all(found[name].states <= allowed for name in SHARDED)


def main() -> int:
    """Measure both precisions; 1 if a strategy that shards takes more than it may."""
    layer = layer_bytes() / 2**20
    print(f"{NUM_BLOCKS} layers of {layer:.1f} MiB (fp32), AdamW, {NUM_STEPS} steps")
    met = [compare(precision, n) for precision in ("32-true", "bf16-mixed") for n in RANKS]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
