"""Fits that are killed at moments drawn from all of their life, and resumed until they end."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from tests.helpers.ports import free_port
from tests.helpers.process import is_running
from tests.helpers.tiny import NUM_FEATURES, QUIET, TinyModule

NUM_STEPS = 12
NUM_SAMPLES = 40
KILLS_PER_FIT = 2
_LIMIT_S = 120.0
_LIBC = ctypes.CDLL(None, use_errno=True)


class Fit(NamedTuple):
    """A fit, which may take several starts."""

    folder: Path
    temporaries: Path
    """Where the temporary files of several go; a short path, for sockets lie there too."""
    num_ranks: int
    is_async: bool = False
    num_workers: int = 0

    @property
    def temporary(self) -> Path:
        """Where its processes put temporary files."""
        return self.temporaries / self.folder.name


class _NoteResumed(pl.Callback):
    """Notes from which checkpoint a start goes on."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero and trainer.ckpt_path:
            with (Path(trainer.default_root_dir) / "resumed").open("a") as notes:
                notes.write(f"{Path(trainer.ckpt_path).name}\n")


class _Model(TinyModule):
    def __init__(self) -> None:
        super().__init__(dropout=0.5)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.log("progress", float(self.global_step))
        return super().training_step(batch, batch_idx)


def _train(rank: int, fit: Fit, port: int) -> None:
    """What the user's script does, at each start the same."""
    os.environ |= {
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0"},
        **{"WORLD_SIZE": str(fit.num_ranks), "LOCAL_RANK": str(rank)},
        "TMPDIR": str(fit.temporary),
        "LIGHTNING_GAUDI_RELIABILITY": f"async_save={'on' if fit.is_async else 'off'}",
    }
    hccl = importlib.import_module("habana_frameworks.torch.distributed.hccl")
    hccl.initialize_distributed_hpu()
    tempfile.tempdir = None  # which the process that was forked had looked up
    torch.set_num_threads(1)
    pl.seed_everything(1, verbose=False)
    checkpoints = ModelCheckpoint(
        fit.folder / "saved",
        filename="{step}",
        monitor="progress",
        mode="max",
        save_top_k=2,
        save_last=True,
        every_n_train_steps=2,
        enable_version_counter=False,
    )
    trainer = pl.Trainer(
        accelerator="hpu",
        devices=fit.num_ranks,
        max_steps=NUM_STEPS,
        max_epochs=-1,
        default_root_dir=fit.folder,
        callbacks=[checkpoints, _NoteResumed()],
        **{**QUIET, "enable_checkpointing": True},
    )
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(NUM_SAMPLES, NUM_FEATURES, generator=generator))
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=fit.num_workers)
    model = _Model()
    trainer.fit(model, loader, ckpt_path="last")
    torch.save(model.cpu().state_dict(), fit.folder / f"weights-{rank}.pt")
    if dist.is_initialized():
        dist.barrier()


def _fork(rank: int, fit: Fit, port: int) -> int:
    """Start a rank as Python starts a script, and end it as Python ends one; returns its id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    with contextlib.suppress(BaseException):
        os.setsid()
        log = os.open(fit.folder / f"log-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        try:
            _train(rank, fit, port)
            status = 0
        except BaseException:
            traceback.print_exc()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def start(fit: Fit) -> list[int]:
    """Start all ranks of a fit; returns their ids."""
    fit.temporary.mkdir(exist_ok=True)
    port = free_port()
    return [_fork(rank, fit, port) for rank in range(fit.num_ranks)]


def wait(pids: Sequence[int], until: float) -> dict[int, int]:
    """The exit statuses of those ranks that end until a moment."""
    ended: dict[int, int] = {}
    while len(ended) < len(pids) and time.monotonic() < until:
        for pid in set(pids) - ended.keys():
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                ended[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return ended


def run_whole(fit: Fit) -> float:
    """A start that nobody kills; returns how long it took.

    Raises:
        AssertionError: A rank failed, or did not end in time.
    """
    begin = time.monotonic()
    pids = start(fit)
    ended = wait(pids, begin + _LIMIT_S)
    if list(ended.values()) != [0] * fit.num_ranks:
        end(pids, ended)
        logs = "\n".join(path.read_text()[-3000:] for path in sorted(fit.folder.glob("log-*")))
        raise AssertionError(f"{fit}: {ended}\n{logs}")
    return time.monotonic() - begin


def run_killed(fit: Fit, moment: float, chance: random.Random) -> bool:
    """A start of which one rank, or all, are killed at a moment; whether it was not over by then.

    What has started the ranks kills the others up to two seconds later, as torchrun or SLURM do.
    """
    begin = time.monotonic()
    pids = start(fit)
    ended = wait(pids, begin + moment)
    if len(ended) == len(pids):
        assert [*ended.values()] == [0] * fit.num_ranks, ended
        return False
    rest = [pid for pid in pids if pid not in ended]
    victims = chance.choice([[pid] for pid in rest] + [rest])
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    delay = 2 * chance.random() if len(victims) < len(rest) else 1.0
    ended |= wait(rest, time.monotonic() + delay)
    end(pids, ended)
    return True


def end(pids: Sequence[int], ended: dict[int, int]) -> None:
    """Kill what still runs."""
    for pid in set(pids) - ended.keys():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def kill_fits(folder: Path, num_ranks: int, num_kills: int, seed: int) -> None:
    """Kill fits until there were enough kills; each is resumed until it ends.

    Writes to `result` how many fits and starts that were, and how many whole checkpoints there are
    that a fit without kills would not have kept: `resumed` are those from which a start went on,
    which Lightning never removes, `superseded` those that had a successor on the disk when the kill
    came, and that Lightning would have removed next.

    Raises:
        AssertionError: The weights of one are not those of a fit that nobody killed, or anything
            else was left behind.
    """
    temporaries = Path(tempfile.mkdtemp(prefix="fits-"))  # forks would end a TemporaryDirectory
    try:
        _kill_fits(folder, temporaries, num_ranks, num_kills, seed)
    finally:
        shutil.rmtree(temporaries)


def _kill_fits(folder: Path, temporaries: Path, num_ranks: int, num_kills: int, seed: int) -> None:
    gc.freeze()
    has_own_memory = _have_own_memory()
    _LIBC.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans become children of this process
    chance, lasts, wanted = random.Random(seed), {}, {}
    kinds = [{"is_async": False}, {"is_async": True}, {"is_async": chance.random() < 0.5}]
    kinds[2]["num_workers"] = 1
    for number, kind in enumerate(kinds):
        whole = Fit(_made(folder / f"whole-{number}"), temporaries, num_ranks, **kind)
        run_whole(whole)  # what is imported and compiled at first comes before what is measured
        whole = whole._replace(folder=_made(folder / f"whole-{number}-again"))
        lasts[number], wanted[number] = run_whole(whole), found_of(whole)
        check_left(whole)
    done = {"kills": 0, "fits": 0, "early": 0, "resumed": 0, "superseded": 0}
    while done["kills"] < num_kills:
        number = 2 if done["fits"] % 10 == 9 else done["fits"] % 2
        place = _made(folder / f"fit-{done['fits']}")
        fit = Fit(place, temporaries, num_ranks, **kinds[number])
        superseded: set[str] = set()
        for _ in range(min(KILLS_PER_FIT, num_kills - done["kills"])):
            was_killed = run_killed(fit, chance.random() * lasts[number], chance)
            done["kills" if was_killed else "early"] += 1
            superseded |= find_superseded(fit)
        run_whole(fit)
        done["fits"] += 1
        weights, names = found_of(fit)
        for name, value in wanted[number][0].items():
            assert torch.equal(weights[name], value), (fit, name)
        assert wanted[number][1] <= names, (fit, names)
        extra = names - wanted[number][1]
        notes = fit.folder / "resumed"  # none where a start had nothing left to train
        resumed = set(notes.read_text().split()) if notes.exists() else set()
        assert extra <= resumed | superseded, (fit, extra, resumed, superseded)
        done["resumed"] += len(extra & resumed)
        done["superseded"] += len(extra - resumed)
        check_left(fit)
        # After each fit, so that one can look how far it has come.
        (folder / "result").write_text(json.dumps({**done, "has_own_memory": has_own_memory}))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def found_of(fit: Fit) -> tuple[dict[str, Tensor], set[str]]:
    """The final weights, the same on all ranks, and the names of the checkpoints."""
    weights = [torch.load(fit.folder / f"weights-{rank}.pt") for rank in range(fit.num_ranks)]
    for each in weights[1:]:
        assert all(torch.equal(each[name], value) for name, value in weights[0].items())
    return weights[0], {path.name for path in (fit.folder / "saved").iterdir()}


def find_superseded(fit: Fit) -> set[str]:
    """The names of checkpoints that the newest one's `ModelCheckpoint` no longer lists.

    All that have their name are loaded: one that is not whole raises.
    """
    states = {
        path.name: torch.load(path, weights_only=True)
        for path in (fit.folder / "saved").glob("*.ckpt")
    }
    if not states:
        return set()
    newest = max(states.values(), key=lambda state: state["global_step"])
    (kept,) = (
        state for name, state in newest["callbacks"].items() if name.startswith("ModelCheckpoint")
    )
    return states.keys() - {Path(path).name for path in kept["best_k_models"]} - {"last.ckpt"}


def check_left(fit: Fit) -> None:
    """Look for what a fit that has ended has left.

    Raises:
        AssertionError: A process, a temporary file, shared memory or half a checkpoint.
    """
    deadline = time.monotonic() + 20
    while (left := _children()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, [Path(f"/proc/{pid}/cmdline").read_text() for pid in left]
    assert not [*fit.folder.rglob(".saving-*")], [*fit.folder.rglob("*")]
    # The simulated cards themselves stay, as real ones would.
    files = [each for each in fit.temporary.iterdir() if "-cards-" not in each.name]
    assert not files, files
    if os.environ.get("_OWN_MEMORY"):
        assert not [*Path("/dev/shm").iterdir()], [*Path("/dev/shm").iterdir()]


def _children() -> list[int]:
    """The processes that run below this one, which has all orphans."""
    found = Path("/proc/self/task").glob("*/children")
    pids = [int(pid) for path in found for pid in path.read_text().split()]
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return [pid for pid in pids if is_running(pid)]


def _have_own_memory() -> bool:
    """Give this process, and those that it starts, a /dev/shm of its own, if it may."""
    private = 0x40000 | 0x4000  # MS_PRIVATE, MS_REC
    has = (
        _LIBC.unshare(0x20000) == 0  # CLONE_NEWNS
        and _LIBC.mount(b"none", b"/", None, ctypes.c_ulong(private), None) == 0
        and _LIBC.mount(b"tmpfs", b"/dev/shm", b"tmpfs", ctypes.c_ulong(0), None) == 0
    )
    os.environ["_OWN_MEMORY"] = "1" if has else ""
    return has
