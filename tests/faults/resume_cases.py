"""An ordinary script that is killed and goes on, for the faults that are about resuming."""

from __future__ import annotations

import gc
import importlib
import os
import random
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from tests.helpers.ports import free_port
from tests.helpers.tiny import QUIET

NUM_STEPS = 15
NUM_SAMPLES = 48
_TIMEOUT_S = 120


class Run(NamedTuple):
    """One start of the script, on all of its ranks."""

    folder: Path
    name: str
    kind: str
    num_ranks: int
    seed: int
    batch_size: int = 2
    every: int = 1
    """Steps from one checkpoint to the next."""
    kill: tuple[int, int] | None = None
    """The rank that is killed, and in which step."""
    resume: bool = False


class _Module(pl.LightningModule):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run_settings = run
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))

    def configure_model(self) -> None:
        if self.run_settings.kind == "fsdp2" and not self._is_sharded():
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def _is_sharded(self) -> bool:
        return hasattr(self.net, "set_requires_gradient_sync")

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = self.net(batch[0]).pow(2).mean()
        run, step = self.run_settings, self.global_step
        seen = ",".join(f"{float(value):g}" for value in batch[0][:, 0])
        with _losses(run, self.global_rank).open("a") as file:
            file.write(f"{step} {float(loss.detach()).hex()} {seen}\n")
        if run.kill == (self.global_rank, step):
            os.kill(os.getpid(), signal.SIGKILL)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def run_once(run: Run) -> None:
    """Run the script on its ranks; where one is killed, the others are then, too."""
    port = free_port()
    context = mp.start_processes(_main, (run, port), run.num_ranks, join=False, start_method="fork")
    deadline = time.monotonic() + _TIMEOUT_S
    try:
        while True:
            try:
                if context.join(timeout=0.5):
                    assert run.kill is None, "nobody was killed"
                    return
            except mp.ProcessExitedException as death:
                if run.kill is None or death.signal_name != "SIGKILL":
                    raise
                return
            assert time.monotonic() < deadline, f"{run} still runs"
    finally:
        _kill(context.processes)


def _kill(processes: list[BaseProcess]) -> None:
    for process in processes:
        process.kill()
        process.join()


def _main(rank: int, run: Run, port: int) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(run.num_ranks),
        "LOCAL_RANK": str(rank),
        "NODE_RANK": "0",
    }
    hccl = importlib.import_module("habana_frameworks.torch.distributed.hccl")
    hccl.initialize_distributed_hpu()
    torch.set_num_threads(1)
    pl.seed_everything(run.seed, verbose=False)
    trainer = pl.Trainer(
        accelerator="hpu",
        devices=run.num_ranks,
        strategy=strategy_of(run),
        max_steps=NUM_STEPS,
        max_epochs=-1,
        callbacks=[_Checkpoints(run)],
        **{**QUIET, "enable_checkpointing": True},
    )
    data = torch.arange(NUM_SAMPLES * 4.0).view(NUM_SAMPLES, 4) / 100
    loader = DataLoader(TensorDataset(data), batch_size=run.batch_size, shuffle=True)
    module = _Module(run)
    last = run.folder / "last.ckpt"
    trainer.fit(module, loader, ckpt_path=last if run.resume else None)
    weights = {name: _local(value) for name, value in module.state_dict().items()}
    torch.save(weights, run.folder / f"{run.name}-{rank}.pt")
    if dist.is_initialized():
        dist.barrier()


def strategy_of(run: Run) -> Any:
    if run.kind.startswith("zero"):
        return DeepSpeedStrategy(stage=int(run.kind[-1]))
    kinds = {"fsdp": FSDPStrategy, "fsdp2": ModelParallelStrategy}
    return kinds[run.kind]() if run.kind in kinds else "auto"


class _Checkpoints(ModelCheckpoint):
    def __init__(self, run: Run) -> None:
        super().__init__(
            run.folder if run.name != "whole" else run.folder / "whole",
            filename="step",
            every_n_train_steps=run.every,
            save_last=True,
            enable_version_counter=False,
        )


def _local(value: Tensor) -> Tensor:
    local = value.to_local() if hasattr(value, "to_local") else value
    return local.detach().cpu().clone()


def _losses(run: Run, rank: int) -> Path:
    return run.folder / f"{run.name}-{rank}.txt"


def losses_of(run: Run) -> list[dict[int, str]]:
    """By rank: of each step the loss in hexadecimal, and the samples of its batch."""
    found = []
    for rank in range(run.num_ranks):
        lines = _losses(run, rank).read_text().splitlines()
        found.append({int(line.split()[0]): line for line in lines})
    return found


def kill_and_resume(folder: Path, kind: str, num_ranks: int, seeds: range) -> None:
    """With each seed: run it whole, kill another run somewhere, resume that, and compare.

    Raises:
        AssertionError: A loss or a weight is another.
    """
    gc.freeze()
    num_losses = 0
    for seed in seeds:
        chance = random.Random(seed)
        place = folder / f"{kind}-{num_ranks}-{seed}"
        place.mkdir()
        every = chance.randint(1, 3)
        kill = chance.randrange(num_ranks), chance.randint(every + 1, NUM_STEPS - 1)
        whole = Run(place, "whole", kind, num_ranks, seed, every=every)
        killed = whole._replace(name="killed", kill=kill)
        resumed = killed._replace(name="resumed", kill=None, resume=True, seed=seed + 1000)
        for run in (whole, killed, resumed):
            run_once(run)
        for rank, (wanted, found) in enumerate(
            zip(losses_of(whole), losses_of(resumed), strict=True)
        ):
            first = min(found)
            assert kill[1] - every <= first <= kill[1], (seed, first, kill)
            assert found == {step: wanted[step] for step in wanted if step >= first}, (seed, rank)
            num_losses += len(found)
            weights = [torch.load(place / f"{name}-{rank}.pt") for name in ("whole", "resumed")]
            for name, value in weights[0].items():
                assert torch.equal(value, weights[1][name]), (seed, rank, name)
    (folder / "num_losses").write_text(str(num_losses))


def resume_on(folder: Path, then: tuple[int, int], now: tuple[int, int]) -> None:
    """Kill a run within an epoch, and resume it with another number of ranks or batch size.

    Args:
        folder: An own folder.
        then: The ranks that were killed, and their batch size.
        now: Those that go on.

    Raises:
        AssertionError: A step has other samples than it would have had.
        Exception: The run that goes on was refused.
    """
    gc.freeze()
    whole = Run(folder, "whole", "auto", then[0], 3, then[1])
    killed = whole._replace(name="killed", kill=(then[0] - 1, 9))
    run_once(whole)
    run_once(killed)
    resumed = killed._replace(
        name="resumed", num_ranks=now[0], batch_size=now[1], kill=None, resume=True
    )
    run_once(resumed)
    wanted, found = _samples_of(whole), _samples_of(resumed)
    assert min(found) in (8, 9), found
    for step, samples in found.items():
        assert samples == wanted[step], step
    (folder / "num_steps").write_text(str(len(found)))


def _samples_of(run: Run) -> dict[int, list[str]]:
    """Of each step the samples that all ranks had."""
    samples: dict[int, list[str]] = {}
    for losses in losses_of(run):
        for step, line in losses.items():
            samples.setdefault(step, []).extend(line.split()[2].split(","))
    return {step: sorted(values) for step, values in samples.items()}
