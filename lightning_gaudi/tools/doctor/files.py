"""Checks folders: TMPDIR, that of checkpoints, and that of the vendor's logs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lightning_gaudi._version import name_page
from lightning_gaudi.tools.doctor import hl_smi
from lightning_gaudi.tools.doctor.findings import Finding, error, note, ok, warning
from lightning_gaudi.tools.doctor.machine import Machine

_MOUNTS = "/proc/self/mounts"
_REMOTE = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "lustre", "beegfs", "gpfs", "ceph", "afs"),
    *("glusterfs", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.goofys"),
)
"""Types of file systems that another machine keeps."""
_LITTLE = 2**30
_NOTHING = 100 * 2**20


def file_system(machine: Machine, path: str) -> str | None:
    """Returns the type of a path's file system, such as "ext4"; None where it is not known."""
    real = str(Path(path or ".").resolve())
    best, kind = "", None
    for line in (machine.read(_MOUNTS) or "").splitlines():
        words = line.split()
        if len(words) < 3:
            continue
        # The kernel writes a space in a path as \040.
        place = words[1].replace("\\040", " ")
        inside = real == place or real.startswith(place.rstrip("/") + "/")
        # Of two file systems that are mounted at one place, the later one hides the other.
        if inside and len(place) >= len(best):
            best, kind = place, words[2]
    return kind


def is_remote(kind: str | None) -> bool:
    """Returns whether a file system is another machine's."""
    return kind in _REMOTE


def check_tmpdir(machine: Machine) -> Iterator[Finding]:
    """Checks if temporary files can be written: by DataLoader workers, compilers and Python."""
    asked = machine.environment.get("TMPDIR")
    folder = asked or "/tmp"
    name = f"TMPDIR={asked}" if asked else "/tmp"
    problem = _why_not_write(folder)
    free, kind = machine.free_bytes(folder), file_system(machine, folder)
    if problem:
        advice = "Make it, or set TMPDIR to a folder that can be written."
        yield error("TMPDIR", f"{name}: {problem}", advice)
    elif free is not None and free < _LITTLE:
        level = error if free < _NOTHING else warning
        yield level("TMPDIR", f"{name}: {_gib(free)} free", "Free some, or set TMPDIR elsewhere.")
    elif is_remote(kind):
        yield warning(
            "TMPDIR",
            f"{name} is on {kind}: slow, and sockets and locks may not work there",
            "Set TMPDIR to a folder on a disk of this server.",
        )
    else:
        yield ok("TMPDIR", f"{name}, {_gib(free)} free, {kind or 'unknown file system'}")


def check_logs(machine: Machine) -> Iterator[Finding]:
    """Checks whether the vendor's software can write its logs, which say why a card failed."""
    folder = machine.environment.get("HABANA_LOGS")
    if folder and machine.exists(folder) and hl_smi.read_cards(machine):
        if problem := _why_not_write(folder):
            yield warning(
                "logs",
                f"HABANA_LOGS={folder}: {problem}",
                "Set HABANA_LOGS to a folder that you can write, on all servers.",
            )
        else:
            yield ok("logs", f"HABANA_LOGS={folder}")


def check_checkpoints(machine: Machine, folder: str) -> Iterator[Finding]:
    """Checks whether checkpoints can be written whole: space, locks, replacing a file in one step.

    Args:
        machine: This one.
        folder: The folder for them; it need not be there yet.
    """
    area, place = "checkpoints", _existing(Path(folder))
    if problem := _why_not_write(str(place)):
        yield error(area, f"{place}: {problem}", "Name a folder that can be written.")
        return
    free, kind = machine.free_bytes(str(place)), file_system(machine, str(place))
    about = f"{place}, {_gib(free)} free, {kind or 'unknown file system'}"
    if not _replaces(place):
        yield error(
            area,
            f"{about}: a file cannot take another's place there",
            "A save that is killed would leave no checkpoint. Name a folder elsewhere.",
        )
    elif not _locks(place):
        yield warning(
            area,
            f"{about}: files cannot be locked there",
            "What a killed save left is not swept. Mount it with locks (NFS: without nolock; "
            "Lustre: with flock).",
        )
    elif free is not None and free < _LITTLE:
        yield warning(area, about, "Free some: a save needs room beside the checkpoint before.")
    elif is_remote(kind):
        yield note(
            area,
            f"{about}: all servers see it, and a save is as fast as the network",
            "async_save=True writes while training goes on: "
            f"{name_page('What keeps a run', 'explanation/reliability')}.",
        )
    else:
        yield ok(area, about)


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    return next((each for each in (folder, *folder.parents) if each.exists()), folder)


def _why_not_write(folder: str) -> str | None:
    """Returns why no file can be made in a folder; None if one can."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".lightning-gaudi-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error_:
        return error_.strerror or str(error_)
    return None


def _replaces(folder: Path) -> bool:
    """Returns whether a file can take the place of another in one step, which saving needs."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".lightning-gaudi-") as private:
        old, new = Path(private) / "old", Path(private) / "new"
        old.write_text("old")
        new.write_text("new")
        with contextlib.suppress(OSError):
            new.replace(old)
            return old.read_text() == "new" and not new.exists()
    return False


def _locks(folder: Path) -> bool:
    """Returns whether locking a file keeps others from locking it."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".lightning-gaudi-") as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        # flock's locks belong to a file description: a second one asks as another process would.
        # Some network file systems let both have the lock.
        with open(file.name) as other:  # noqa: PTH123
            try:
                fcntl.flock(other.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except OSError:
                return False
    return False


def _gib(num_bytes: int | None) -> str:
    if num_bytes is None:
        return "unknown space"
    if num_bytes < _LITTLE:
        return f"{num_bytes / 2**20:.0f} MiB"
    return f"{num_bytes / 2**30:,.0f} GiB"
