"""Finds out how programs that hold a card end when something goes wrong.

Each fault gets a program of its own (`fault_program.py`), which computes on a card until it raises
or is sent a signal. How it ends is noted, with a time limit. After a program was killed, it is
tried whether the card can be acquired again.
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

from lightning_gaudi.tools.verify.process import end, environment

_START_S = 120
"""How long a program may take until it computes: for its imports and its first graph."""


@dataclass(frozen=True)
class Fault:
    """A way in which a program goes wrong, and how it is expected to end."""

    key: str
    title: str
    expected: str
    """What a real card is expected to give as `found`."""
    source: str
    """Where the expectation comes from."""
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
"""A DDP training such as users write, whose second rank raises in its third step."""

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
"""All faults, in the order in which they are tried."""


def measure(
    num_cards: int,
    mode: str,
    limit_s: float,
    is_card_free: Callable[[], bool],
    tell: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    """Yields for each fault how its program ended.

    Args:
        num_cards: The number of cards of this server; faults that need more are left out.
        mode: "eager" or "lazy".
        limit_s: How long a program may take to end.
        is_card_free: Returns whether a process gets a card.
        tell: Is called with the title of the fault that is next.
    """
    with contextlib.ExitStack() as stack:
        # All programs import at the same time, which saves minutes; each acquires its card in turn.
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
    """Returns the row of a fault."""
    if problem:
        return {"key": fault.key, "problem": f"it has not begun: {problem}"}
    if fault.key == "hang":
        found = "card free" if is_card_free() else "card not free"
    row = {"key": fault.key, "expected": fault.expected, "found": found}
    return {**row, "seconds": round(seconds, 2)}


@contextlib.contextmanager
def _started(fault: Fault, mode: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Starts the program's ranks, and ends them when the context does."""
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
    """Ends processes with all that they have started, and empties the list.

    It is called when a fault is done, and once more at the end of the context.
    """
    while processes:
        process = processes.pop()
        end(process)
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _of_rank(rank: int, num_ranks: int, port: int) -> dict[str, str]:
    """Returns the variables by which torchrun tells a process its rank."""
    found = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GROUP_RANK": "0"}
    found |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
    found |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(num_ranks))
    return found | {"TORCHELASTIC_RUN_ID": "lightning-gaudi-verify"}


def _start(fault: Fault, mode: str, rank: int, folder: str, port: int) -> subprocess.Popen[str]:
    env = environment(mode)
    env.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)  # users' programs do not set it
    if fault.num_ranks > 1:
        env |= _of_rank(rank, fault.num_ranks, port)
    program = ["-m", "lightning_gaudi.tools.verify.fault_program", fault.key]
    with _ctrl_c_noticed():
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


@contextlib.contextmanager
def _ctrl_c_noticed() -> Iterator[None]:
    """Has programs that are started here notice Ctrl-C, as from a terminal.

    A shell starts what runs in the background so that it ignores SIGINT, and each process passes
    that on to those that it starts.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if before is signal.SIG_IGN:
            signal.signal(signal.SIGINT, before)


def _wait_for_work(processes: Sequence[subprocess.Popen[str]]) -> str:
    """Lets all processes begin, and waits until they compute.

    Returns:
        Why one of them does not; empty if all do.
    """
    for process in processes:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is noticed below
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
    """Sends the signal of a fault, if it has one, and returns how the program ended."""
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
