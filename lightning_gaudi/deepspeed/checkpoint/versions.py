"""The versions in a checkpoint folder of DeepSpeed's; the file `latest` names the one that counts.

    last.ckpt/
        latest           the name of the version below: written at the end, in one step
        checkpoint-2/    the shards, see `shards`, and when they are on disk their manifest
        zero_to_fp32.py  DeepSpeed's own tool

A version is never overwritten. The first has the name that Lightning gives to its only version.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import IO

from lightning_gaudi.untrusted import printable

from ...checkpoint.atomic import write_atomically
from ...checkpoint.candidates import read_latest
from ...checkpoint.folders import make_folder, sync
from ...checkpoint.leftovers import LATEST, TOOLS, SaveLock, sweep
from ...checkpoint.manifest import Manifest, write_folder_manifest

_FIRST = "checkpoint"
_TAG = re.compile(rf"{_FIRST}(?:-(\d+))?")


class Claim:
    """A folder for a new version, locked until it is published or discarded.

    Args:
        folder: The checkpoint; made if it does not exist.

    Raises:
        OSError: It cannot be made, or another process saves to it.
    """

    def __init__(self, folder: Path) -> None:
        if folder.is_file():
            raise FileExistsError(
                f"Could not save {folder}: it is a file, and DeepSpeed's checkpoints are folders. "
                "Delete it, or save elsewhere."
            )
        make_folder(folder.parent)
        sweep(folder.parent)
        number = max((_number(name) for name in _versions(folder)), default=0) + 1
        self.tag = _FIRST if number == 1 else f"{_FIRST}-{number}"
        self._lock = SaveLock(folder, self.tag)
        try:
            self._lock.make_version()
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        """Releases the lock once the version is published or discarded."""
        self._lock.release()


def publish(folder: Path, tag: str, manifest: Manifest | None) -> None:
    """Makes a version the checkpoint, then removes the others that we wrote.

    Args:
        folder: The checkpoint.
        tag: The version, all of whose files are on disk.
        manifest: Its manifest.

    Raises:
        OSError: It cannot be; the checkpoint is what it was.
    """
    if manifest is not None:
        write_folder_manifest(folder / tag, manifest)
    # The one step that makes the version count.
    write_atomically(folder / LATEST, lambda file: _write(file, tag))
    for other in _versions(folder):
        if other != tag and _has_states(folder / other):
            discard(folder, other)


def sync_tools(folder: Path) -> None:
    """Syncs the tools that DeepSpeed has put into a checkpoint."""
    for tool in TOOLS:
        sync(folder / tool)


def discard(folder: Path, tag: str) -> None:
    """Removes a version as far as possible."""
    shutil.rmtree(folder / tag, ignore_errors=True)


def latest(folder: Path) -> str:
    """Returns the name of the version to load.

    Raises:
        DamagedCheckpointError: What it names is not within the folder.
        FileNotFoundError: There is none, or no checkpoint at all.
    """
    shown = printable(folder)
    if not folder.exists():
        raise FileNotFoundError(f"There is no checkpoint at {shown}. Check the path.")
    if not (folder / LATEST).is_file():
        raise FileNotFoundError(f"{shown} is no checkpoint of DeepSpeed's: {_explain(folder)}")
    tag = read_latest(folder)
    if not tag or not (folder / tag).is_dir():
        raise FileNotFoundError(
            f"The checkpoint {shown} is incomplete: its file {LATEST!r} names the folder "
            f"{printable(repr(tag))}, which is not there. Copy it again, with all that is in it."
        )
    return tag


def _write(file: IO[bytes], tag: str) -> None:
    file.write(tag.encode())


def _explain(path: Path) -> str:
    """Returns why there is no `latest`, and what to do."""
    if path.is_file() and not (path.parent.parent / LATEST).is_file():
        return "it is one file, and needs no shards put together."
    for parent in path.parents[:2]:
        if (parent / LATEST).is_file():
            return f"it is a part of one. Pass {printable(parent)}."
    found = _versions(path) if path.is_dir() else []
    if found:
        return (
            f"it has {printable(', '.join(sorted(found)))}, but no file {LATEST!r}, which is "
            "written when all is saved. Saving was interrupted, or that file was not copied. "
            "Pass another."
        )
    return f"it has no file {LATEST!r}. Pass the folder that was given to save_checkpoint."


def _versions(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return [each.name for each in folder.iterdir() if _TAG.fullmatch(each.name) and each.is_dir()]


def _has_states(version: Path) -> bool:
    """Returns whether DeepSpeed has saved to a folder.

    Hugging Face's Trainer gives its folders the same names.
    """
    return any(version.glob("*_states.pt"))


def _number(tag: str) -> int:
    found = _TAG.fullmatch(tag)
    return int((found and found[1]) or 1)
