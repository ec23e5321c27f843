"""Puts a folder in the place of another, or of a file, at once or not at all."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from lightning.fabric.utilities.cloud_io import _is_local_file_protocol, get_filesystem
from lightning.fabric.utilities.types import _PATH

if TYPE_CHECKING:
    from .remote import RemotePath

AnyPath: TypeAlias = "Path | RemotePath"
"""Where a checkpoint is: on this machine, or at an address; only the latter is no `Path`."""

_EXCHANGE = 2  # RENAME_EXCHANGE of <linux/fs.h>
_HERE = -100  # AT_FDCWD of <fcntl.h>
_NOT_HERE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


def local_path(path: _PATH) -> Path:
    """Returns a local path, which may be given as an address such as `file:///runs`."""
    return Path(get_filesystem(path)._strip_protocol(str(path)))


def place_of(path: _PATH) -> AnyPath:
    """Returns where a path or an address leads to: on this machine, or somewhere else."""
    if _is_local_file_protocol(path):
        return local_path(path)
    from .remote import RemotePath  # which a run that saves on its own disk does without

    return RemotePath(str(path))


def temporary_for(target: Path) -> Path:
    """Returns the path beside `target` where its successor is built, the same each time.

    So the next save clears what a killed one left. The name is derived from the target's but does
    not contain it, so that a search for checkpoints by name does not find it.
    """
    digest = hashlib.sha256(os.fsencode(target.name)).hexdigest()[:32]
    return target.with_name(f".saving-{digest}.tmp")


def removed_for(target: Path) -> Path:
    """Returns where a folder is put while it is removed, so that no part of it is taken for all."""
    return target.with_name(f".saving-removed-{uuid.uuid4().hex}.tmp")


def make_folder(folder: Path) -> None:
    """Makes a folder and those above it, and brings their names to disk.

    Existing folders are synced, too: Lightning and its loggers make folders without syncing them,
    and a checkpoint is lost with the name of a folder above it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # a folder above may be closed to us, and is not ours then
        _sync_names(folder.resolve())


def remove_at_once(path: Path) -> None:
    """Removes a file or a folder; a folder is never seen in part under its name."""
    if path.is_dir() and not path.is_symlink():
        aside = removed_for(path)
        path.rename(aside)
        # Without it the disk may have a part of the folder by its old name after a loss of power.
        sync(path.parent)
        path = aside
    remove(path)


def prepare(target: Path) -> Path:
    """Makes an empty folder to build `target` in; clears or completes what a killed save left."""
    make_folder(target.parent)
    recover(target)
    temporary = temporary_for(target)
    remove(temporary)
    temporary.mkdir()
    return temporary


def put_in_place(temporary: Path, target: Path) -> None:
    """Makes `temporary` the target; until then, and after a failure, the target is what it was.

    Args:
        temporary: A file or folder on the same file system, complete and on disk.
        target: A file, a folder, or nothing yet.
    """
    try:
        # `rename` replaces a file, or an empty folder, at once; of a full folder it raises.
        temporary.replace(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
            raise
        # What was the target has the temporary name now, and is removed below.
        if not _exchange(temporary, target):
            _replace_in_two_steps(temporary, target)
            temporary = _aside(target)
        # Before anything is removed, the disk must know that the target is the new one.
        sync(target.parent)
        remove(temporary)
    sync(target.parent)


def recover(target: Path) -> None:
    """Puts back what was at `target` if a save was killed between the two steps of replacing it.

    That happens only where the file system cannot exchange two names.
    """
    aside = _aside(target)
    if not is_own(aside):
        return
    # The second step was done as well: what was set aside is the old one.
    if os.path.lexists(target):
        remove(aside)
    else:
        aside.replace(target)


def remove(path: Path) -> None:
    """Removes a file, or a folder and all that is in it, or nothing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_own(path: Path) -> bool:
    """Returns whether something is there that this user owns; a symbolic link is not followed.

    A file server may give everything that root makes to a user such as "nobody" (NFS calls this
    root_squash). So a file that we make in the same folder tells whose files are ours.
    """
    try:
        owner, user = path.lstat().st_uid, os.geteuid()
    except OSError:
        return False
    return owner == user or owner == _owner_in(path.parent, user)


def _owner_in(folder: Path, user: int) -> int:
    """Returns the owner of a file that `user` makes in a folder; `user` if he cannot make one."""
    try:
        with tempfile.NamedTemporaryFile(
            dir=folder, prefix=".saving-file-", suffix=".tmp"
        ) as probe:
            return os.fstat(probe.fileno()).st_uid
    except OSError:
        return user


def sync(path: Path) -> None:
    """Brings a file, or the names in a folder, to disk if its file system can."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _sync_names(folder: Path) -> None:
    """Brings the name of a folder and of those above it to disk, up to where it is mounted."""
    for each in (folder, *folder.parents):
        # The name of a mount point lies on the file system above it, and is not ours to sync.
        if each.parent == each or each.parent.stat().st_dev != each.stat().st_dev:
            return
        sync(each.parent)


def _aside(target: Path) -> Path:
    return temporary_for(target).with_suffix(".old")


def _exchange(first: Path, second: Path) -> bool:
    """Exchanges two names in one step; returns False where that is not possible."""
    # Python has no function for renameat2, and not every C library exports it.
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NOT_HERE:
        return False
    raise OSError(code, os.strerror(code), str(second))


def _replace_in_two_steps(temporary: Path, target: Path) -> None:
    aside = _aside(target)
    # Killed between the two steps, there is no target: `recover` puts `aside` back.
    target.replace(aside)
    try:
        temporary.replace(target)
    except BaseException:
        aside.replace(target)
        raise
