"""Records the audited process from the end of `import torch` on, and ends it after its steps.

A program is ended where it stands. Unwinding it by an exception would run its handlers, which save
checkpoints of a training that nobody wants, and would have launchers report a rank that failed. So
each rank writes its record, waits for those of the others, and leaves at once with status 0; no
rank then misses another in a collective.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from lightning_gaudi._core import vendor
from lightning_gaudi._patches import register
from lightning_gaudi.measured_card import VARIABLE
from lightning_gaudi.simulator import observer
from lightning_gaudi.simulator.settings import SERVER, read_card, read_release
from lightning_gaudi.untrusted import read_integer

from . import call_sites
from .loaders import LoaderWatch
from .patches import PATCHES
from .record import FOLDER, STEPS, WARM_UP, Record
from .recording import Recorder

_WAIT_SECONDS = 60
_POLL_SECONDS = 0.05

_audit: _Audit | None = None


def install() -> None:
    """Begins to record this process, where the simulator is active; a second call is harmless."""
    global _audit
    if _audit is not None:
        return
    _audit = audit = _Audit(Path(os.environ[FOLDER]), read_integer(STEPS))
    observer.observe(audit.recorder.note)
    register.add(PATCHES)
    audit.watch.install()
    register_optimizer_step_post_hook(lambda optimizer, *_: audit.note_stepped(optimizer))
    atexit.register(audit.write)
    # Workers of a DataLoader inherit the observer, but the record of a rank is that of its own
    # process.
    os.register_at_fork(after_in_child=audit.recorder.stop)


class _Audit:
    """Gathers the record of this process.

    Args:
        folder: The folder for the record.
        num_steps: The number of steps after which the process is ended.
    """

    def __init__(self, folder: Path, num_steps: int) -> None:
        self.recorder = Recorder()
        self.watch = LoaderWatch(self.recorder)
        self._folder = folder
        self._num_steps = num_steps
        self._memory: dict[str, int] = {}
        self._trainer = ""
        self._rank: tuple[int, int] | None = None

    def note_stepped(self, optimizer: Any) -> None:
        """Notes that an optimizer has stepped; ends the process after the last step."""
        if not self.recorder.is_on or not self.recorder.note_stepped(optimizer):
            return
        # Asked for in every step, because the process group is gone at the end of a program.
        self._rank = _rank()
        if self.recorder.num_steps == 1:
            self._trainer = call_sites.trainer()
        if self.recorder.num_steps in (1, WARM_UP, self._num_steps):
            # Looking through all objects is slow, so it is not done in every step; the last time
            # counts.
            from lightning_gaudi._core.memory import report as memory_report

            self._memory = memory_report.by_category(_modules(), [optimizer])
        if self.recorder.num_steps >= self._num_steps:
            self._end()

    def write(self, is_ended: bool = False) -> None:
        """Writes the record, if the process has used a card."""
        recorder = self.recorder
        if not recorder.is_on or not (recorder.lines or recorder.steps):
            return
        recorder.stop()
        from lightning_gaudi._core.memory import report as memory_report

        rank, world_size = self._rank or _rank()
        stats = vendor.memory_stats()
        Record(
            rank=rank,
            world_size=world_size,
            pid=os.getpid(),
            is_lazy=vendor.is_lazy(),
            card=read_card().title,
            release=read_release().version,
            measured=os.environ.get(VARIABLE, ""),
            trainer=self._trainer,
            is_ended=is_ended,
            steps=recorder.steps,
            lines=list(recorder.lines.values()),
            loaders=self.watch.loaders(),
            memory=memory_report.with_rest(self._memory, stats["MaxInUse"]),
            peak_bytes=stats["MaxInUse"],
            limit_bytes=stats["Limit"],
        ).write(self._folder)

    def _end(self) -> NoReturn:
        """Ends this process, together with the other ranks."""
        self.write(is_ended=True)
        self._meet(*_rank())
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        # `os._exit` below runs no handlers, so workers of a DataLoader would outlive the process.
        for child in multiprocessing.active_children():
            child.kill()
            child.join()
        # A parent that has started this rank by multiprocessing waits for a result that will not
        # come. It is killed, because it may take SIGTERM as a request to save first.
        if (parent := multiprocessing.parent_process()) is not None and parent.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(parent.pid, signal.SIGKILL)
        os._exit(0)

    def _meet(self, rank: int, world_size: int) -> None:
        """Waits until all ranks have come here, or for a minute: a later rank has failed."""
        ended = [self._folder / f"ended-{_run_name()}-{each}" for each in range(world_size)]
        ended[rank].touch()
        give_up_at = time.monotonic() + _WAIT_SECONDS
        while time.monotonic() < give_up_at and not all(path.exists() for path in ended):
            time.sleep(_POLL_SECONDS)


def _run_name() -> str:
    """Returns a name that the ranks of one run share with no others."""
    names = (SERVER, "MASTER_PORT")
    return "-".join(os.environ.get(name, "") for name in names)


def _rank() -> tuple[int, int]:
    """Returns the rank, and the number of ranks."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return read_integer("RANK", 0), read_integer("WORLD_SIZE", 1, at_least=1)


def _modules() -> torch.nn.Module:
    """Returns all modules of this process, since nobody says which one is the model."""
    # `type`, because `isinstance` asks an object for its `__class__`, which a lazy one computes.
    modules = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]
    return torch.nn.ModuleList(modules)
