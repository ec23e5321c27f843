"""Jobs of which one rank fails, each in processes that end as programs do.

    python raising.py FOLDER '[["forward", 2, 0], ...]'

Ranks are forked from this process, which has imported everything and used no card, and then run the
rest of this file as their program. Whoever has started them ends none: as under `srun`, where a job
may go on without a task. A line of JSON says of each job how its ranks have ended, and when.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch._dynamo
import torch.distributed as dist
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, Dataset

from tests.helpers.ports import free_port
from tests.helpers.tiny import NUM_FEATURES, QUIET, TinyModule

FOLDER, NUM_CARDS, LIMIT_S = Path(sys.argv[1]), 8, 40.0
PLACE, RANK = "", -1
"""Where the rank that this process becomes fails; -1 if it does not."""


def trouble(place: str) -> None:
    """Fail, if this is the place."""
    if place != PLACE.partition(":")[0] or int(os.environ["RANK"]) != RANK:
        return
    (FOLDER / os.environ["JOB"] / "began").write_text(str(time.time()))
    if PLACE.endswith(":exit"):
        sys.exit(3)
    if PLACE.endswith(":interrupt"):
        raise KeyboardInterrupt
    raise ValueError(f"trouble at {place} on purpose")


class Data(Dataset[torch.Tensor]):
    """Fails in a worker, if that is the place."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index > 20:
            trouble("worker")
        return torch.full((NUM_FEATURES,), float(index))

    def __len__(self) -> int:
        return 80


class Failing(torch.autograd.Function):
    """Fails in backward, if that is the place."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor) -> torch.Tensor:
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        trouble("backward")
        return gradient


class Model(TinyModule):
    def setup(self, stage: str) -> None:
        trouble("setup")
        if PLACE == "registered":
            atexit.register(dist.destroy_process_group)  # as programs do

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        if batch_idx == 3:
            trouble("forward")
            trouble("registered")
            loss: torch.Tensor = Failing.apply(self.net(batch).pow(2).mean())
            return loss
        found: torch.Tensor = self.net(batch).pow(2).mean()
        return found

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        if self.global_step == 3:
            trouble("hook")

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        if not self.trainer.sanity_checking:
            trouble("validation")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        trouble("saving")


class Callback(pl.Callback):
    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == 4:
            trouble("callback")


def fit(devices: int) -> None:
    workers = {"num_workers": 1} if PLACE == "worker" else {}
    saves = pl.callbacks.ModelCheckpoint(FOLDER / os.environ["JOB"], every_n_train_steps=4)
    settings = {**QUIET, "enable_checkpointing": True, "callbacks": [Callback(), saves]}
    trainer = pl.Trainer(accelerator="hpu", devices=devices, max_epochs=1, **settings)
    trainer.fit(Model(), DataLoader(Data(), 4, **workers), DataLoader(Data(), 4))


def fit_twice(devices: int) -> None:
    """At another port the second time: a destroyed group keeps its own until the program ends."""
    fit(devices)
    dist.destroy_process_group()
    trouble("destroyed")
    os.environ["MASTER_PORT"] = os.environ["ANOTHER_PORT"]
    fit(devices)


def loop(devices: int) -> None:
    fabric = Fabric(accelerator="hpu", devices=devices)
    fabric.launch()
    model = torch.nn.Linear(NUM_FEATURES, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(8):
        if step == 3:
            trouble("fabric")
        fabric.backward(model(torch.ones(2, NUM_FEATURES, device=fabric.device)).sum())
        optimizer.step()
    fabric.barrier()


def plain(devices: int) -> None:
    import habana_frameworks.torch.distributed.hccl  # noqa: F401, TID251

    dist.init_process_group("hccl")
    found = torch.ones(4, device="hpu")
    dist.all_reduce(found)
    try:
        trouble("plain")
    finally:
        dist.destroy_process_group()  # as programs do


def start(number: int, slot: int, place: str, size: int, rank: int) -> list[int] | None:
    """Fork the ranks of a job: their processes; None in each of them."""
    global PLACE, RANK
    folder = FOLDER / str(number)
    folder.mkdir()
    ports = free_port(), free_port()
    processes = []
    for each in range(size):
        if process := os.fork():
            processes.append(process)
            continue
        os.setpgid(0, 0)
        PLACE, RANK = place, rank
        output = os.open(folder / f"output{each}", os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        ranks: dict[str, Any] = {
            "RANK": each,
            "LOCAL_RANK": each,
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size,
        }
        modules = ",".join(str(slot * size + index) for index in range(size))
        meeting = {"MASTER_ADDR": "127.0.0.1", "JOB": number}
        meeting |= {"MASTER_PORT": ports[0], "ANOTHER_PORT": ports[1]}
        ranks["HABANA_VISIBLE_MODULES"] = modules
        os.environ.update({name: str(value) for name, value in {**ranks, **meeting}.items()})
        torch.set_num_threads(1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return None
    return processes


def report(number: int, processes: list[int], place: str, size: int, rank: int) -> bool:
    """Say how a job has ended, if it has; what goes on for too long is killed."""
    folder = FOLDER / str(number)
    written = (folder / "began").read_text() if (folder / "began").exists() else ""
    began = float(written) if written else None
    running = [each for each in processes if os.waitid(os.P_PID, each, _LOOK) is None]
    is_late = began is not None and time.time() - began > LIMIT_S
    if running and not is_late:
        return False
    for each in running:
        os.kill(each, signal.SIGKILL)
    took = None if began is None else time.time() - began
    statuses = [os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in processes]
    found = {"number": number, "place": place, "size": size, "rank": rank}
    print(json.dumps({**found, "statuses": statuses, "took": took}), flush=True)
    return True


_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT


def main() -> bool:
    """Run all jobs; False in a rank, which then goes on below."""
    gc.freeze()
    waiting = [*enumerate(json.loads(sys.argv[2]))]
    size = waiting[0][1][1]
    free, running = [*range(NUM_CARDS // size)], dict[int, tuple[Any, ...]]()
    while waiting or running:
        if waiting and free:
            slot, (number, case) = free.pop(), waiting.pop(0)
            processes = start(number, slot, *case)
            if processes is None:
                return False
            running[slot] = (number, processes, *case)
        free += [slot for slot, job in running.items() if report(*job)]
        running = {slot: job for slot, job in running.items() if slot not in free}
        time.sleep(0.1)
    return True


if not main():
    kind = PLACE.partition(":")[0]
    run = {"fabric": loop, "plain": plain, "destroyed": fit_twice}.get(kind, fit)
    run(int(os.environ["WORLD_SIZE"]))
