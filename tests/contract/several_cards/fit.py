"""A user's script for several cards: `python -m tests.contract.several_cards.fit FOLDER DEVICES`.

Lightning starts the other ranks itself. Each rank leaves its weights in FOLDER, and, since it is
there, what the checks of the collectives find in the group that the Trainer made.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from lightning_gaudi._core import collectives, vendor
from tests.helpers.tiny import QUIET, TinyModule, batches

from .collectives import run_checks

NUM_STEPS = 10
BATCH_SIZE = 4
"""Of each rank."""


def seeded(kind: type[TinyModule]) -> TinyModule:
    """The same weights in every process that calls this."""
    torch.manual_seed(3)
    return kind(dropout=0.0)


class Module(TinyModule):
    """Feeds each rank every n-th sample, in order: n ranks see at a step what one process sees."""

    def train_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        size = self.trainer.world_size
        dataset = batches(2 * NUM_STEPS * size, BATCH_SIZE).dataset
        sampler = DistributedSampler(dataset, size, self.trainer.global_rank, shuffle=False)
        return DataLoader(dataset, BATCH_SIZE, sampler=sampler)


def main(folder: Path, num_devices: int) -> None:
    """Train, and save what the tests look at."""
    vendor.device_count()
    meeting_port = os.environ.get("MASTER_PORT")  # of the vendor's import, if any
    module = seeded(Module)
    # Accumulation included: one all-reduce for every two batches.
    trainer = pl.Trainer(
        accelerator="hpu",
        devices=num_devices,
        max_steps=NUM_STEPS,
        accumulate_grad_batches=2,
        use_distributed_sampler=False,
        default_root_dir=folder,
        **QUIET,
    )
    trainer.fit(module)
    trainer.save_checkpoint(folder / "last.ckpt")
    seen = {
        "weights": [parameter.detach().cpu() for parameter in module.parameters()],
        "module_id": vendor.selected_module(),
        "device": str(trainer.strategy.root_device),
        "strategy": trainer.strategy.__class__.__name__,
        "world_size": trainer.world_size,
        "num_losses": len(module.losses),
        "meeting_port": meeting_port,
    }
    torch.save(seen, folder / f"rank{trainer.global_rank}.pt")
    run_checks(folder, trainer.global_rank, trainer.world_size)
    collectives.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
