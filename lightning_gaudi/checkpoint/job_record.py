"""Which checkpoints a fit has saved, for the case that torchrun or SLURM starts it again.

A folder may hold checkpoints of other runs, and a start may get another folder than the one before
(`version_1` after `version_0`): so what was saved is written down, path by path, in a small file of
the job. It lies in `.lightning_gaudi` of the Trainer's `default_root_dir`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_gaudi._core.untrusted import parse_json, printable

from .atomic import write_atomically
from .opening import read_small

_MAX_BYTES = 2**26

FOLDER = ".lightning_gaudi"


class JobRecord:
    """What is written down of one fit of a job; only rank 0 has it."""

    def __init__(self, root: str | Path, job: str, agent: str, fit: Sequence[str]) -> None:
        """Take note of the fit; nothing is read or written yet.

        Args:
            root: A folder that the job has at each start.
            job: The job's name.
            agent: What has started this process, see `reliability.jobs`.
            fit: What tells the fit from others of the job, such as the command.
        """
        digest = hashlib.sha256("\0".join(fit).encode()).hexdigest()[:12]
        name = re.sub(r"[^\w.-]", "_", job)
        self.path = Path(root, FOLDER, f"{name}-{digest}.json")
        self.first_path: str | None = None
        """The checkpoint that the fit began with at its first start."""
        self._agent = agent
        self._before: dict[str, Any] = {}
        """What was there before it, of each path that the fit has saved to; the newest last."""

    def read(self) -> str | None:
        """Go on with what an earlier start has written down.

        Returns:
            What had started it; None if nothing is written down.
        """
        try:
            found = _checked(parse_json(read_small(self.path, _MAX_BYTES)))
        except FileNotFoundError:
            return None
        except ValueError as error:
            rank_zero_warn(
                f"{printable(self.path)} is no record of a job ({printable(error)}): the fit does "
                "not go on from what an earlier start has saved. Delete the file."
            )
            return None
        self.first_path = found["first_path"]
        self._before = dict(found["saved"])
        return str(found["agent"])

    def begin(self, path: str | None) -> None:
        """Forget what is written down of an earlier job of this name.

        Args:
            path: The checkpoint that the fit begins with.
        """
        self.first_path = path
        self._before = {}
        self.path.unlink(missing_ok=True)

    def is_about_to_save(self, path: str) -> None:
        """Note a path before a checkpoint is there: it counts once there is another than now.

        Raises:
            OSError: It cannot be written down.
        """
        if path not in self._before:
            self._before = {path: _state(path), **self._before}
            self._write(path)

    def has_saved(self, path: str, *, is_written: bool) -> None:
        """Note that the newest checkpoint is there, or about to be written by another thread.

        Raises:
            OSError: It cannot be written down.
        """
        before = self._before.pop(path, None)
        self._before[path] = None if is_written else before
        self._write(path)

    def saved(self) -> list[Path]:
        """The checkpoints of the fit that are there, the newest last."""
        found = {path: _state(path) for path in self._before}
        return [
            Path(path)
            for path, before in self._before.items()
            if found[path] is not None and found[path] != before
        ]

    def _write(self, path: str) -> None:
        # ModelCheckpoint removes what it does not keep.
        self._before = {
            each: before
            for each, before in self._before.items()
            if each == path or _state(each) is not None
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, self._dump)

    def _dump(self, file: IO[bytes]) -> None:
        found = {"agent": self._agent, "first_path": self.first_path}
        file.write(json.dumps({**found, "saved": list(self._before.items())}).encode())


def _checked(found: Any) -> dict[str, Any]:
    """What is written down, if it is what `JobRecord` writes.

    Raises:
        ValueError: It is not.
    """
    if not isinstance(found, dict) or not isinstance(found.get("agent"), str):
        raise ValueError("it does not say who started the job")
    if not isinstance(found.get("first_path"), (str, type(None))) or "first_path" not in found:
        raise ValueError("it does not say what the fit began with")
    saved = found.get("saved")
    if not isinstance(saved, list) or not all(map(_is_saved, saved)):
        raise ValueError("it does not say what was saved")
    return found


def _is_saved(entry: Any) -> bool:
    """Whether it is a path, and what told the file apart that was there before."""
    if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str):
        return False
    path, before = entry
    numbers = isinstance(before, list) and len(before) == 3
    return "\0" not in path and (
        before is None or (numbers and all(type(each) is int for each in before))
    )


def _state(path: str) -> list[int] | None:
    """What tells a file or folder from another of that name; None if there is none."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return [found.st_ino, found.st_mtime_ns, found.st_size]
