"""Fits whose saves are recorded, and what must be found after each loss of power in them."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import lightning.pytorch as pl
import torch
import torch.multiprocessing as mp
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lightning_gaudi._core.progress import begin_session
from lightning_gaudi.checkpoint import folders, leftovers
from lightning_gaudi.checkpoint.candidates import candidates, read_manifest_if_any, whole
from lightning_gaudi.checkpoint.io import HPUCheckpointIO
from lightning_gaudi.checkpoint.torch_dcp.save import save_sharded
from lightning_gaudi.checkpoint.verify import check_folder
from lightning_gaudi.deepspeed.checkpoint.consolidate import extras
from lightning_gaudi.deepspeed.checkpoint.save import save as save_deepspeed
from lightning_gaudi.deepspeed.checkpoint.shards import find
from lightning_gaudi.deepspeed.checkpoint.versions import latest
from lightning_gaudi.strategies import jobs as job_record
from lightning_gaudi.strategies.jobs import JobRecord
from tests.faults.resume_cases import Run, strategy_of
from tests.faults.saving import Engine, rest
from tests.helpers.disk_states import Disk, State
from tests.helpers.ports import free_port
from tests.helpers.syscalls import mark, record
from tests.helpers.tiny import QUIET, TinyModule, batches

NUM_STEPS = 6
_AGAIN = 1000
"""The step of what is saved after the power has come back."""


class Case(NamedTuple):
    """A kind of checkpoint, saved by a fit."""

    kind: str
    """As of `resume_cases`."""
    num_ranks: int = 1
    is_async: bool = False
    is_again: bool = False
    """Whether another run has saved to the same folder before."""
    is_exchanged: bool = True
    """Whether the file system exchanges two names at once."""


class _Saved(NamedTuple):
    """A checkpoint: when its run began, and the step in which it was saved."""

    began: float
    step: int


class _Model(TinyModule):
    def configure_model(self) -> None:
        from torch.distributed.fsdp import fully_shard

        kind = type(self.trainer.strategy).__name__
        if "ModelParallel" in kind and not hasattr(self.net, "set_requires_gradient_sync"):
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.log("progress", float(self.global_step))
        return super().training_step(batch, batch_idx)


class _Checkpoints(ModelCheckpoint):
    """The two newest and `last`; marks when each is promised to be on the disk."""

    def __init__(self, disk: Path, is_async: bool) -> None:
        super().__init__(
            filename="{step}",
            monitor="progress",
            mode="max",
            save_top_k=2,
            save_last=True,
            every_n_train_steps=2,
            enable_version_counter=False,
        )
        self._disk, self._is_async = disk, is_async

    def _save_checkpoint(self, trainer: pl.Trainer, filepath: str) -> None:
        super()._save_checkpoint(trainer, filepath)
        if trainer.is_global_zero:
            # What is written in a thread is on the disk before the next is begun.
            step = trainer.global_step - 2 if self._is_async else trainer.global_step
            mark(self._disk, f"{max(step, 0)}")


def _fit(rank: int, case: Case, disk: Path, port: int, job: str) -> None:
    os.environ |= {
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(rank)},
        **{"RANK": str(rank), "WORLD_SIZE": str(case.num_ranks), "GROUP_RANK": "0"},
        **{"LOCAL_WORLD_SIZE": str(case.num_ranks), "TORCHELASTIC_RUN_ID": job},
        "LIGHTNING_GAUDI_RELIABILITY": f"async_save={'on' if case.is_async else 'off'}",
    }
    hccl = importlib.import_module("habana_frameworks.torch.distributed.hccl")
    hccl.initialize_distributed_hpu()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if not case.is_exchanged:
        folders._exchange = lambda first, second: False
    pl.seed_everything(len(job), verbose=False)
    root = disk / "runs"
    trainer = pl.Trainer(
        accelerator="hpu",
        devices=case.num_ranks,
        strategy=strategy_of(Run(disk, "", case.kind, case.num_ranks, 1)),
        max_steps=NUM_STEPS,
        max_epochs=-1,
        default_root_dir=root,
        callbacks=[_Checkpoints(disk, case.is_async)],
        **{**QUIET, "enable_checkpointing": True, "logger": CSVLogger(root, version=0)},
    )
    trainer.fit(_Model(), batches(4 * case.num_ranks))
    if trainer.is_global_zero:
        mark(disk, f"{trainer.global_step}")


def run_fit(case: Case, disk: Path, job: str = "power") -> None:
    """Fit on all ranks of a case, as a job of torchrun's."""
    port = free_port()
    arguments = (case, disk, port, job)
    ranks = mp.start_processes(_fit, arguments, case.num_ranks, join=False, start_method="fork")
    while not ranks.join():
        pass


def lose_power(folder: Path, case: Case, limit: int, seed: int) -> None:
    """Record a fit, and look at what each loss of power in it leaves.

    Writes to `result` how many states there were, and whether these were all.

    Raises:
        AssertionError: A state has no checkpoint that it should have, or half of one.
    """
    gc.freeze()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    place = folder / "disk"
    place.mkdir()
    if case.is_again:
        record(lambda: run_fit(case, place, "another"), place)  # in a process of its own
    disk = Disk(place)
    disk.follow(record(lambda: run_fit(case, place), place))
    states, is_all = disk.states(limit, seed)
    fast = fast_folder(folder)
    try:
        check = Check(case, disk, fast)
        check.expect()
        for state in states:
            check.look_at(state)
    finally:
        shutil.rmtree(fast)
    result = {"states": len(states), "all": is_all, "events": disk.num_events}
    (folder / "result").write_text(json.dumps(result))


def fast_folder(folder: Path) -> Path:
    """A folder in memory, if there is one."""
    shared = Path("/dev/shm")
    return Path(tempfile.mkdtemp(dir=shared if os.access(shared, os.W_OK) else folder))


class Check:
    """Looks at the states of a disk."""

    def __init__(self, case: Case, disk: Disk, place: Path) -> None:
        self._case, self._disk, self._place = case, disk, place
        self._known: dict[_Saved, list[Tensor]] = {}
        """What was saved in each step of each run."""
        self._loaded: dict[str, _Saved] = {}
        """Those that were loaded and compared, by all that they hold."""

    def expect(self) -> None:
        """Load what the program itself would have found after each save."""
        for at in (0, *(at for at, _ in self._disk.marks), self._disk.num_events):
            with self._rebuilt(self._disk.whole(at)) as root:
                for candidate in candidates(_folders(root)):
                    saved, tensors = load(candidate.path)
                    self._known.setdefault(saved, tensors)
        newest = self._newest = max(self._known).began
        first, second = (self._known[_Saved(newest, step)] for step in (2, 4))
        assert _Saved(newest, NUM_STEPS) in self._known
        assert not all(map(torch.equal, first, second))

    def look_at(self, state: State) -> None:
        """Raise where a state is not as it must be; says which one."""
        promised = [int(text) for at, text in self._disk.marks if at < state.at]
        try:
            with self._rebuilt(state) as root:
                self._look_at(root, promised[-1] if promised else 0)
        except Exception as error:
            names = "\n".join(
                f"  {path} {len(content) if isinstance(content, bytes) else content or ''}"
                for path, content in state.tree
            )
            raise AssertionError(
                f"After {state.at} of {self._disk.num_events} events: {error!r}\n{names}"
            ) from error

    def _look_at(self, root: Path, promised: int) -> None:
        damaged: list[str] = []
        found = candidates(_folders(root), damaged)
        assert not damaged, damaged
        saved = [self._load(each.path) for each in found]
        assert not promised or saved[0] >= _Saved(self._newest, promised), (saved, promised)
        assert saved == sorted(saved, reverse=True), saved
        self._look_at_record(root, promised)
        self._save_again(root)

    def _load(self, path: Path) -> _Saved:
        """Which checkpoint it is; it loads, and has the numbers of that one."""
        key = _digest(path)
        if key not in self._loaded:
            self._loaded[key] = self._compared(path)
        return self._loaded[key]

    def _compared(self, path: Path) -> _Saved:
        saved, tensors = load(path)
        if saved.step == _AGAIN:
            return saved
        wanted = self._known[saved]
        assert len(tensors) == len(wanted)
        assert all(torch.equal(*pair) for pair in zip(tensors, wanted, strict=True)), path
        return saved

    def _look_at_record(self, root: Path, promised: int) -> None:
        """What a further start of the job goes on from."""
        files = [*root.rglob(f"{job_record.FOLDER}/*power*.json")]
        found: list[Path] = []
        if files:
            job = JobRecord(root, "power", "", ())
            job.path = files[0]
            job.read()
            # It names the files of the disk that was recorded.
            job._before = {
                path.replace(self._disk.root, str(root)): before
                for path, before in job._before.items()
            }
            found = whole(job.saved())
        saved = [self._load(each) for each in found]
        assert all(each.began == self._newest for each in saved), saved
        assert not promised or saved[0].step >= promised, (saved, promised)

    def _save_again(self, root: Path) -> None:
        """What is saved then is found, and what was half written goes."""
        folder = (_folders(root) or [root / "runs"])[0]
        begin_session()
        save(self._case.kind, folder / "last.ckpt")
        newest = candidates([folder])[0].path
        assert (self._load(newest).step, newest.name) == (_AGAIN, "last.ckpt")
        assert not [*folder.glob(".saving-*")], [*folder.iterdir()]
        for each in folder.glob("*.ckpt"):
            self._load(each)

    @contextlib.contextmanager
    def _rebuilt(self, state: State) -> Iterator[Path]:
        root = self._place / "state"
        root.mkdir()
        rebuilt = self._disk.rebuild(state, root)
        stats = {path: self._disk.node(number) for path, number in rebuilt.items()}
        # The kernel gives an inode number again once its file is removed. A state may still have
        # that file: the newest one of the number is meant.
        in_order = sorted(rebuilt, key=lambda path: rebuilt[path])
        _renumber_locks(root, {stats[path][0]: Path(path).stat().st_ino for path in in_order})

        def state_of(path: str) -> list[int] | None:
            """What the file had been, in place of what its copy is."""
            if not Path(path).exists():
                return None
            inode, before = stats[path]
            if before is not None:
                return [inode, before.st_mtime_ns, before.st_size]
            return [inode, 0, 0]

        with (
            mock.patch.object(job_record, "_state", state_of),
            mock.patch.object(leftovers, "_lock_domain", return_value="another"),
        ):
            yield root
        shutil.rmtree(root)


def _renumber_locks(root: Path, inodes: dict[int, int]) -> None:
    """Have locks name the copies of those folders that they name by their numbers."""
    for lock in root.rglob(".saving-*.lock"):
        words, times = lock.read_bytes().split(b"\n"), lock.stat()
        for position, word in enumerate(words):
            if position > 2 and word.isdigit() and int(word) in inodes:
                words[position] = str(inodes[int(word)]).encode()
        lock.write_bytes(b"\n".join(words))
        os.utime(lock, ns=(times.st_atime_ns, times.st_mtime_ns))


def _folders(root: Path) -> list[Path]:
    return [*root.glob("runs/lightning_logs/version_0/checkpoints")]


def _digest(path: Path) -> str:
    files = sorted(each for each in (path, *path.rglob("*")) if each.is_file())
    digest = hashlib.sha256()
    for file in files:
        data = file.read_bytes()
        digest.update(f"{file.relative_to(path.parent)} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def load(path: Path) -> tuple[_Saved, list[Tensor]]:
    """Which checkpoint it is, of any kind, and all of its tensors.

    Raises:
        DamagedCheckpointError: It is not what was saved.
    """
    if path.is_dir() and not (path / ".metadata").exists():
        check_folder(path / latest(path))
        shards = find(path)
        files = [*shards.model_files, *shards.optimizer_files]
        found: Any = [torch.load(file, weights_only=False) for file in files]
        step = extras(shards)["global_step"]
    else:
        found = HPUCheckpointIO().load_checkpoint(path)
        step = found["global_step"]
    manifest = read_manifest_if_any(path)
    assert manifest is not None
    assert manifest.global_step == step
    return _Saved(manifest.began, step), [
        each for each in tree_leaves(found) if isinstance(each, Tensor)
    ]


def save(kind: str, path: Path) -> None:
    """Save a checkpoint of a kind, on one rank."""
    weights = {"weight": torch.ones(4)}
    if kind.startswith("zero"):
        save_deepspeed(Engine(_AGAIN), path, rest(_AGAIN), exclude_frozen=False)
    elif kind == "fsdp2":
        save_sharded(path, {"state_dict": weights}, rest(_AGAIN))
    else:
        HPUCheckpointIO().save_checkpoint({**rest(_AGAIN), "state_dict": weights}, path)
