"""How programs end that hold a card: each fault is done to a program of its own, with a time limit.

A program runs on its card until it is told to go wrong (`fault_program.py`). Then it is seen how it
ends, and whether the card can be taken again.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_gaudi._core.processes import end_group
from lightning_gaudi.tools.verify.process import environment

_START_S = 120
"""How long a program may take until it computes: the imports, and the first graph."""


@dataclass(frozen=True)
class Fault:
    """What is done to a program, and how it ends as far as is known."""

    key: str
    title: str
    expected: str
    """What `found` is on a card as it is known."""
    source: str
    num_ranks: int = 1


_TRAINING = """\
import sys

import lightning.pytorch as pl
import torch

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        if index == 2:
            print("working", flush=True)
            if self.global_rank == 1:
                raise RuntimeError("this rank raises on purpose")
        return self.layer(batch).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)

sys.stdin.read()
shown = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
trainer = pl.Trainer(
    accelerator="hpu", devices=2, max_epochs=1, enable_model_summary=False, **shown
)
trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=4))
"""
"""A training with DDP, as users write one; its second rank raises in its third step."""

_SIGINT = "bridge 1.19 takes SIGINT, 1.24.0 does not; lightning_gaudi gives it back to Python"
FAULTS = (
    Fault("raise", "a program raises", "status 1", "Python: a traceback, and status 1"),
    Fault("interrupt", "Ctrl-C", "caught", _SIGINT),
    Fault("terminate", "SIGTERM", "status 143", "Python: its handler raises SystemExit(143)"),
    Fault(
        "raise_of_one_rank",
        "one of two ranks raises",
        "ends",
        "lightning_gaudi ends the rank before HCCL waits for the others (docs/reference/faults.md)",
        num_ranks=2,
    ),
    Fault("hang", "a program hangs, and is killed", "card free", "the driver frees what it held"),
)
"""All that are done, in this order."""


def measure(
    num_cards: int,
    mode: str,
    limit_s: float,
    is_card_free: Callable[[], bool],
    tell: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    """Yields how programs with each fault ended.

    Args:
        num_cards: Cards of this server; a fault that needs more is left out.
        mode: "eager" or "lazy".
        limit_s: How long a program may take to end.
        is_card_free: Says whether a process gets a card.
        tell: Is told which fault is next.
    """
    with contextlib.ExitStack() as stack:
        # All import at the same time. Each takes its card when it is its turn, and leaves it.
        wanted = [fault for fault in FAULTS if fault.num_ranks <= num_cards]
        programs = [(fault, stack.enter_context(_started(fault, mode))) for fault in wanted]
        for fault, processes in programs:
            tell(fault.title)
            problem = _wait_for_work(processes)
            started = time.monotonic()
            found = "" if problem else _done(fault, processes, limit_s)
            seconds = time.monotonic() - started
            _end(processes)
            yield _row(fault, found, problem, seconds, is_card_free)


def _row(
    fault: Fault, found: str, problem: str, seconds: float, is_card_free: Callable[[], bool]
) -> dict[str, Any]:
    """Returns what is told of a fault."""
    if problem:
        return {"key": fault.key, "problem": f"it has not begun: {problem}"}
    if fault.key == "hang":
        found = "card free" if is_card_free() else "card not free"
    row = {"key": fault.key, "expected": fault.expected, "found": found}
    return {**row, "seconds": round(seconds, 2)}


@contextlib.contextmanager
def _started(fault: Fault, mode: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Starts the program's ranks, and leaves none."""
    processes: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory(prefix="lightning_gaudi_verify_") as folder:
        try:
            port = _free_port()
            for rank in range(fault.num_ranks):
                processes.append(_start(fault, mode, rank, folder, port))
            yield processes
        finally:
            _end(processes)


def _end(processes: list[subprocess.Popen[str]]) -> None:
    """Ends programs with all that they have started; another time it finds none."""
    while processes:
        process = processes.pop()
        end_group(process.pid, 0)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _of_rank(rank: int, num_ranks: int, port: int) -> dict[str, str]:
    """Returns the variables by which torchrun tells a process who it is."""
    found = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GROUP_RANK": "0"}
    found |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
    found |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(num_ranks))
    return found | {"TORCHELASTIC_RUN_ID": "lightning-gaudi-verify"}


def _start(fault: Fault, mode: str, rank: int, folder: str, port: int) -> subprocess.Popen[str]:
    env = environment(mode)
    env.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)  # as programs are started
    if fault.num_ranks > 1:
        env |= _of_rank(rank, fault.num_ranks, port)
    program = ["-m", "lightning_gaudi.tools.verify.fault_program", fault.key]
    return subprocess.Popen(
        [sys.executable, *(program if fault.num_ranks == 1 else ["-c", _TRAINING])],
        env=env,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def _wait_for_work(processes: Sequence[subprocess.Popen[str]]) -> str:
    """Has all begin, and waits until they compute; returns why one does not, empty if all do."""
    for process in processes:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is seen below
            process.stdin.close()
    deadline = time.monotonic() + _START_S
    for process in processes:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], max(0, deadline - time.monotonic()))
        line = process.stdout.readline().strip() if ready else ""
        if line != "working":
            return line or ("nothing was heard" if not ready else "it ended")
    return ""


def _done(fault: Fault, processes: Sequence[subprocess.Popen[str]], limit_s: float) -> str:
    """Does a fault; returns how the program ended."""
    process = processes[-1]
    if fault.key == "hang":
        os.kill(process.pid, signal.SIGKILL)
    elif fault.key in _SIGNALS:
        os.kill(process.pid, _SIGNALS[fault.key])
    try:
        status = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return "hangs"
    assert process.stdout is not None
    if fault.key == "interrupt":
        return "caught" if "caught" in process.stdout.read() else "killed"
    if fault.num_ranks > 1:
        return "ends" if status else "status 0"
    return f"status {status}"


_SIGNALS: Mapping[str, signal.Signals] = {
    "interrupt": signal.SIGINT,
    "terminate": signal.SIGTERM,
}
