"""Four ranks that train a moment and end, many times; started as `devices=4` does, but by forks.

    python exiting.py FOLDER COUNT NUM_RANKS

This process has torch and no device. For each job it forks rank 0, which forks the others when
Lightning starts them: so a job takes a second and not ten. They end as any Python does, with all
that is called at exit; only what the forks share is not looked through for garbage then, which is
most of what the end of an ordinary process costs.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch
import torch._dynamo
import torch._inductor.graph
import torchmetrics  # noqa: F401


class Waiting:
    """A fork that waits until Lightning runs the script in it; in the fork `is_here` is True."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        self.returncode = None
        self.pid = os.fork()
        self.is_here = self.pid == 0
        if self.is_here:
            os.close(self._writer)
            with os.fdopen(self._reader) as told:
                environ = json.loads(told.readline() or "null")
            if environ is None:  # rank 0 ended before
                os._exit(1)
            os.environ.clear()
            os.environ.update(environ)

    def run(self, environ: dict[str, str]) -> Waiting:
        """Have it run the script."""
        with os.fdopen(self._writer, "w") as tell:
            tell.write(f"{json.dumps(environ)}\n")
        return self

    def send_signal(self, signum: int) -> None:
        """As `Popen` does."""
        os.kill(self.pid, signum)


def _become_ranks(num_ranks: int) -> None:
    """Fork the other ranks, and have Lightning's launcher take them for those that it starts."""
    waiting: list[Waiting] = []
    for _ in range(num_ranks - 1):
        fork = Waiting()
        if fork.is_here:
            torch._import_device_backends()
            from lightning_gaudi._core import processes

            processes.watch_parent()
            return
        waiting.append(fork)
    torch._import_device_backends()
    from lightning.fabric.strategies.launchers import subprocess_script as fabric
    from lightning.pytorch.strategies.launchers import subprocess_script as trainer

    for module in (fabric, trainer):
        module.subprocess = Launched(waiting)  # type: ignore[attr-defined]


class Launched:
    """What Lightning uses of `subprocess`."""

    def __init__(self, waiting: list[Waiting]) -> None:
        self._waiting = waiting

    def Popen(self, command: Any, env: dict[str, str], **settings: Any) -> Waiting:  # noqa: N802
        return self._waiting.pop(0).run(env)


def _train(folder: Path, num_ranks: int) -> None:
    import lightning.pytorch as pl

    from tests.helpers.tiny import QUIET, TinyModule, batches

    trainer = pl.Trainer(accelerator="hpu", devices=num_ranks, max_epochs=1, **QUIET)
    trainer.fit(TinyModule(), batches(4 * num_ranks))
    with (folder / "ended").open("a") as file:
        file.write(f"{time.time()}\n")


def _jobs(folder: Path, count: int, limit_s: float) -> bool:
    """Run jobs; True in rank 0 of one. A job that does not end is left, and named."""
    for number in range(count):
        job = folder / str(number)
        job.mkdir()
        if (pid := os.fork()) == 0:
            os.chdir(job)
            return True
        end = time.monotonic() + limit_s
        while (found := os.waitpid(pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)  # the others end with it
                sys.exit(f"job {number} did not end")
            time.sleep(0.02)
        ended = [float(line) for line in (job / "ended").read_text().split()]
        result = {
            "status": os.waitstatus_to_exitcode(found[1]),
            "after_s": time.time() - max(ended),
        }
        print(json.dumps(result | {"num_ranks": len(ended)}), flush=True)
    return False


if __name__ == "__main__":
    gc.freeze()
    _folder, _num_ranks = Path(sys.argv[1]), int(sys.argv[3])
    if _jobs(_folder, int(sys.argv[2]), limit_s=180):
        _become_ranks(_num_ranks)
        _train(Path.cwd(), _num_ranks)
