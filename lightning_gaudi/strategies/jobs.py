"""The scheduler's job that this process belongs to, and a record of what a fit of it has saved.

A job that is started again goes on from the newest checkpoint that it has saved. A folder may hold
checkpoints of other runs, and a start may get another folder than the one before (`version_1` after
`version_0`). So the path of each checkpoint is written to a small file of the job, which lies in
`.lightning_gaudi` of the Trainer's `default_root_dir`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import socket
import stat
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeGuard, cast

from lightning_gaudi.untrusted import parse_json, printable, read_integer

from ..checkpoint.folders import AnyPath, make_folder, place_of, sync

if TYPE_CHECKING:
    from ..checkpoint.remote import RemotePath, RemoteStat

FOLDER = ".lightning_gaudi"
JOB_ID = "LIGHTNING_GAUDI_JOB_ID"
"""Names a job whose restarts look like new ones to it, such as the pods of Kubernetes."""
_MAX_BYTES = 2**24


@dataclass(frozen=True)
class Job:
    """What is known of a job, and stays the same when its processes are started again."""

    scheduler: str
    """What starts the processes, for messages: `"torchrun"`, `"SLURM"`, `"Kubernetes"`."""
    name: str
    """The scheduler's name for the job."""
    is_unique: bool
    """Whether no other job of the scheduler has this name."""
    agent: str = ""
    """Identifies the torchrun process of this node; empty if it is not known."""
    num_restarts: int = 0
    """How often the scheduler has started this process before; nodes may count differently."""
    is_named: bool = False
    """Whether the user has named the job, so that each start of that name is one of it."""

    def is_restart_of(self, agent: str, *, is_restarted: bool, has_ended: bool = False) -> bool:
        """Returns whether this is a further start of the job that had the same name.

        Args:
            agent: The agent of the earlier start.
            is_restarted: Whether a rank of this start was started before.
            has_ended: Whether the fit has ended.
        """
        # A finished fit that is started by the same rendezvous id is meant as another run.
        if self.is_named and not (has_ended and self.scheduler == "torchrun"):
            return True
        # A node that has replaced another counts no restart, but some other rank of it does.
        return bool(self.agent and agent == self.agent) or (self.is_unique and is_restarted)


def find_job(environ: Mapping[str, str] = os.environ) -> Job | None:
    """Returns the job that this process belongs to; None if nothing would start it again.

    Within a job of SLURM torchrun is part of it: when SLURM starts that again, torchrun is new. A
    pod of Kubernetes that takes the place of another is new in all that it sees; a job is known
    there by LIGHTNING_GAUDI_JOB_ID, or by a rendezvous id of its own (`torchrun --rdzv-id`).

    Source: torch 2.13, `distributed/elastic/agent/server/local_elastic_agent.py` (variables of a
    worker), `distributed/run.py` (`--rdzv-id`, by default "none" for all), `multiprocessing/api.py`
    (`DefaultLogsSpecs`: a folder for each agent, below it one for each attempt); SLURM 22.05,
    sbatch(1), output environment variables.
    """
    number, run = environ.get("SLURM_JOB_ID"), environ.get("TORCHELASTIC_RUN_ID")
    agent = _agent(environ) if run is not None else ""
    restarts = read_integer("TORCHELASTIC_RESTART_COUNT", 0, environment=environ)
    if given := environ.get(JOB_ID):
        return Job(f"{JOB_ID}={given}", f"job-{given}", True, agent, restarts, is_named=True)
    # Before torchrun's: within SLURM a requeued job starts a new torchrun, whose id and count say
    # nothing of the starts before.
    if number is not None:
        name = "-".join(filter(None, (environ.get("SLURM_CLUSTER_NAME"), number)))
        requeues = read_integer("SLURM_RESTART_COUNT", 0, environment=environ)
        scheduler = "torchrun" if restarts else "SLURM"
        return Job(scheduler, f"slurm-{name}", True, agent, restarts + requeues)
    if run is not None:
        is_named = run != "none"
        name = f"torchrun-{run}"
        return Job("torchrun", name, is_named, agent, restarts, is_named and not _is_drawn(run))
    if "KUBERNETES_SERVICE_HOST" in environ:
        return Job("Kubernetes", "kubernetes", False)
    return None


def _is_drawn(run: str) -> bool:
    """Returns whether torchrun has drawn the rendezvous id at random, as with `--standalone`."""
    try:
        return str(uuid.UUID(run)) == run
    except ValueError:
        return False


def _agent(environ: Mapping[str, str]) -> str:
    # `<log dir>/<run id>_<random>/attempt_0/0/error.json`: the third folder upwards is the agent's
    # own.
    path = environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or len(Path(path).parents) < 3:
        return ""
    return f"{socket.gethostname()}:{Path(path).parents[2]}"


class TakenOverError(RuntimeError):
    """The job was started again while this process still trains for it."""


class JobRecord:
    """The record of one fit of a job, which rank 0 keeps."""

    def __init__(self, root: str | Path, job: str, agent: str, fit: Sequence[str]) -> None:
        """Identifies the fit; nothing is read or written yet.

        Args:
            root: A folder that is the same at each start of the job.
            job: The job's name.
            agent: The agent that has started this process; see `Job`.
            fit: Identifies the fit within the job: the command, the model's class, and how many
            fits of that class came before.
        """
        digest = hashlib.sha256("\0".join(fit).encode()).hexdigest()[:12]
        name = re.sub(r"[^\w.-]", "_", job)
        folder = place_of(root) / FOLDER
        self.path: AnyPath = folder / f"{name}-{digest}.json"
        self.first_path: str | None = None
        """The checkpoint that the fit began with at its first start."""
        self.has_ended = False
        """Whether the fit has come to its end."""
        self._agent = agent
        self._fit = [*fit]
        self._job = job
        self._prefix = f"{name}-"
        self._start = f"{socket.gethostname()} {os.getpid()} {uuid.uuid4().hex}"
        """Identifies this start."""
        self._start_before: str | None = None
        """Identifies the start whose record this one goes on with."""
        self._before: dict[str, Any] = {}
        """The state of each path before the fit saved to it, the newest path last."""
        self._awaited: set[str] = set()
        """Paths that a thread may still be writing, which must not count as removed."""

    def read(self) -> str | None:
        """Reads the record of an earlier start.

        Returns:
            The agent of that start; None if there is no record.

        Raises:
            OSError: It cannot be read, or is not this user's file.
            ValueError: It is not a record.
        """
        try:
            found = parse_json(_read_own(self.path))
        except FileNotFoundError:
            return None
        if not isinstance(found, dict) or not _is_record(found):
            raise ValueError("it is not a record of a fit")
        self.first_path = found["first_path"]
        self.has_ended = found.get("has_ended", False)
        self._start_before = found.get("start")
        self._before = dict(found["saved"])
        return str(found["agent"])

    def begin(self, path: str | None) -> None:
        """Discards the record of an earlier job of this name.

        Args:
            path: The checkpoint that the fit begins with.
        """
        self.first_path = path
        self.has_ended = False
        self._before = {}
        if self.path.exists():
            self.path.unlink()
            if isinstance(self.path, Path):
                sync(self.path.parent)

    def commands_before(self) -> list[list[str]]:
        """Returns other commands by which this job has run such a fit and saved checkpoints.

        Raises:
            OSError: The store does not answer.
        """
        folder, (*_, model, count) = self.path.parent, self._fit
        found = []
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name.startswith(self._prefix) and path != self.path:
                try:
                    record = parse_json(_read_own(path))
                except (OSError, ValueError):
                    continue
                fit = record.get("fit") if isinstance(record, dict) else None
                if _is_fit(fit) and fit[-2:] == [model, count]:
                    found.append(fit[:-2])
        return found

    def check_own(self) -> None:
        """Raises if a later start of the job has saved meanwhile.

        Raises:
            TakenOverError: One has, which is named. Two would overwrite each other's checkpoints.
            OSError: It cannot be read.
        """
        try:
            found = parse_json(_read_own(self.path))
        except (FileNotFoundError, ValueError):
            return
        start = found.get("start") if isinstance(found, dict) and _is_record(found) else None
        if start in (None, self._start, self._start_before):
            return
        host, pid, _ = [*printable(start, max_chars=200).split(" "), "", "", ""][:3]
        raise TakenOverError(
            f"The job {self._job!r} was started again while this process of it still trained: "
            f"process {pid} on {host} has saved since, as {self.path} says. Both would write over "
            "each other's checkpoints, so this one ends, and saves nothing more. If they are two "
            "jobs, give each a name of its own."
        )

    def is_about_to_save(self, path: str) -> None:
        """Records a path before a checkpoint is saved to it.

        Raises:
            OSError: It cannot be written down.
        """
        # With the state of what is there now: a kill may come at any moment, and then the path
        # counts only if something else is there than before.
        if path not in self._before:
            self._before = {path: _state(path), **self._before}
            self._awaited.add(path)
            self._write(path)

    def has_saved(self, path: str, *, is_written: bool) -> None:
        """Records that a checkpoint was saved, or handed to a thread that writes it.

        Raises:
            OSError: It cannot be written down.
        """
        before = self._before.pop(path, None)
        self._before[path] = None if is_written else before
        self._write(path)

    def end(self) -> None:
        """Records that the fit has ended, if it has saved a checkpoint.

        Raises:
            OSError: It cannot be written down.
        """
        self.has_ended = True
        if self._before:
            self._write(next(reversed(self._before)))

    def saved(self) -> list[AnyPath]:
        """Returns the checkpoints of the fit that exist, the newest last."""
        found = _states(self._before)
        return [
            place_of(path)
            for path, before in self._before.items()
            if found[path] is not None and found[path] != before
        ]

    def _write(self, path: str) -> None:
        found = _states(self._before)
        self._awaited -= {
            each for each in self._awaited if found.get(each) != self._before.get(each)
        }
        # Paths that ModelCheckpoint has removed meanwhile are dropped from the record.
        self._before = {
            each: before
            for each, before in self._before.items()
            if each == path or each in self._awaited or found[each] is not None
        }
        if not isinstance(self.path, Path):
            self.path.write(self._dump)
            return
        from ..checkpoint.atomic import write_atomically

        make_folder(self.path.parent)
        if self.path.parent.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, "it is a symbolic link", str(self.path.parent))
        write_atomically(self.path, self._dump)

    def _dump(self, file: IO[bytes]) -> None:
        found = {
            "agent": self._agent,
            "start": self._start,
            "fit": self._fit,
            "first_path": self.first_path,
            "has_ended": self.has_ended,
            "saved": list(self._before.items()),
        }
        file.write(json.dumps(found).encode())


def _read_own(path: AnyPath) -> bytes:
    """Returns the content of a file, which must be this user's own.

    It names checkpoints to load, so nobody else may have written it.
    """
    if not isinstance(path, Path):  # the store's own rights say who may write there
        with path.open() as file:
            return file.read(_MAX_BYTES)
    if path.parent.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, "it is a symbolic link", str(path.parent))
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or not _is_own(found.st_uid, path.parent):
            raise PermissionError(errno.EPERM, f"it is another user's file ({found.st_uid})")
        return file.read(_MAX_BYTES)


def _is_own(owner: int, folder: Path) -> bool:
    """Returns whether an owner is this user, or the one whom a file server maps him to."""
    if owner == os.geteuid():
        return True
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".owner-") as file:
        return os.fstat(file.fileno()).st_uid == owner


def _is_record(found: dict[str, Any]) -> bool:
    saved = found.get("saved")
    return (
        isinstance(found.get("agent"), str)
        and isinstance(found.get("first_path", 0), str | None)
        and isinstance(found.get("has_ended", False), bool)
        and isinstance(found.get("start", ""), str)
        and isinstance(saved, list)
        and all(isinstance(each, list) and len(each) == 2 for each in saved)
        and all(_is_path(path) and _is_state(state) for path, state in saved)
    )


def _is_fit(value: object) -> TypeGuard[list[str]]:
    is_list = isinstance(value, list) and len(value) > 2
    return is_list and all(isinstance(each, str) for each in cast("list[object]", value))


def _is_path(value: object) -> bool:
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return True


def _is_state(value: object) -> bool:
    """Returns whether a value is one that `_state` returns."""
    is_three = isinstance(value, list) and [type(each) for each in value] == [int, int, int]
    return value is None or is_three


def _state(path: str) -> list[int] | None:
    """Returns numbers that change when a path gets a new content; None if nothing is there."""
    try:
        found = place_of(path).stat()
    except OSError:
        return None
    return _numbers(found)


def _numbers(found: os.stat_result | RemoteStat) -> list[int]:
    return [found.st_ino, found.st_mtime_ns, found.st_size]


def _states(paths: Iterable[str]) -> dict[str, list[int] | None]:
    """Returns the states of several paths, listing each folder of a store once."""
    found: dict[str, list[int] | None] = {}
    folders: dict[RemotePath, dict[str, str]] = {}
    for path in paths:
        place = place_of(path)
        if not isinstance(place, Path):
            folders.setdefault(place.parent, {})[place.name] = path
        else:
            found[path] = _state(path)
    for folder, names in folders.items():
        try:
            listed = folder.stats(names)
        except OSError:
            listed = {}
        for name, path in names.items():
            each = listed.get(name)
            found[path] = each and _numbers(each)
    return found
