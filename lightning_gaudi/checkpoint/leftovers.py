"""Removes what killed saves have left, which it tells by the locks of those who save.

    .saving-file-<seen>-<any>.tmp   a file that is being written, locked by its writer
    .saving-<digest>.tmp            a folder that is being built; see `folders`
    .saving-<digest>.lock           locked while it is; says what is being saved
    .saving-removed-<any>.tmp       a folder that is being removed

A lock may not be visible from another machine, nor through another mount of the same folder (with
FUSE two pods of one machine share a volume so). What was saved from there must also be old.

Anybody may have made a file of such a name: it may come with an archive, or lie in a folder that
several users write to. So nothing is done because a lock says so, except in its own folder and to
names that saves make; no symbolic link is followed; what another user owns stays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from .folders import is_own, recover, remove, sync, temporary_for

LATEST = "latest"
"""The file that names the version to load, in a folder of versions; DeepSpeed's name for it."""

TOOLS = {"zero_to_fp32.py", "zero_to_torch.py"}
"""What DeepSpeed puts into each folder."""

_FILE = ".saving-file-"
"""How the name of a file that is being written begins."""

_MIN_AGE_S = 60.0
"""How old leftovers must be that another machine may still be writing."""

_PATIENCE_S = 5.0
"""How long to wait for a lock, which a process that sweeps holds for a moment."""

_MAX_WORDS_BYTES = 4096
"""The longest content of a lock or of `latest`; a file name has at most 255 bytes."""

_UNFOLLOWED = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Flags to open what somebody else may have put there; a pipe without a writer does not block."""


def file_for(target: Path) -> Path:
    """Returns a new path beside `target` to write to, by a name that nobody searches for."""
    return target.with_name(f"{_FILE}{_lock_domain(target.parent)}-{uuid.uuid4().hex}.tmp")


def create_locked(path: Path) -> IO[bytes]:
    """Makes a file and locks it until it is closed or this process ends.

    Raises:
        OSError: It exists, or cannot be made.
    """
    while True:
        file = path.open("xb")
        with contextlib.suppress(OSError):  # of a file system without locks
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        # Another process has swept the file between `open` and the lock: it has no name any more.
        file.close()


class _Said(NamedTuple):
    """The content of a lock, on the save that holds it."""

    domain: str
    """Who sees the lock; see `_lock_domain`."""
    name: str = ""
    """The target, which lies beside the lock; empty before the save has written it."""
    version: str = ""
    version_inode: int = 0
    """The inode of the version's folder: its name alone would not prove that this save made it."""
    target_inode: int = 0
    """The inode of the target, if the save has made it."""


class SaveLock:
    """Tells others that a save is going on; an unlocked one tells that its save was killed.

    Where the name of the lock is taken by something that is no lock and cannot be removed, the
    save goes on without one.

    Args:
        target: The folder that is being saved.
        version: The name of the part of it that is being saved, if there are versions.

    Raises:
        BlockingIOError: Another process is saving to it.
    """

    def __init__(self, target: Path, version: str = "") -> None:
        self._target = target
        self._said = _Said(_lock_domain(target.parent), target.name, version)
        self._path = temporary_for(target).with_suffix(".lock")
        self._descriptor = self._take()
        self._write()
        if self._descriptor is not None:
            # What it says must be on disk before what it tells of: after a loss of power nobody
            # else knows what was half written.
            os.fsync(self._descriptor)
            sync(self._path.parent)

    def make_version(self) -> None:
        """Makes the folder of the version, and brings its name to disk.

        It gets its name when the lock says which folder it is: whoever is killed before has made
        nothing but a temporary folder.

        Raises:
            OSError: It cannot be made.
        """
        target, temporary = self._target, temporary_for(self._target)
        place = target / self._said.version
        is_new = not os.path.lexists(target)
        remove(temporary)
        # A new target is built aside with the version in it, so that one rename names both.
        made = temporary / place.name if is_new else temporary
        made.mkdir(parents=True)
        self._note(made, temporary if is_new else None)
        try:
            temporary.rename(target if is_new else place)
        except OSError as error:
            remove(temporary)
            if error.errno != errno.EXDEV:  # the target may be a link to another file system
                raise
            place.mkdir()
            self._note(place, None)
        sync(target)
        sync(target.parent)

    def release(self) -> None:
        """Ends the save, and removes what it has not completed."""
        with contextlib.suppress(OSError, RecursionError):
            _clear(self._path, self._said, follow_target=True)
        if self._descriptor is not None:
            # Before it is closed, which unlocks it: by then another save may hold this name.
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def _take(self) -> int | None:
        patience = time.monotonic() + _PATIENCE_S
        while (descriptor := _open_lock(self._path)) is not None:
            # Its last holder may have removed it between our `open` and our lock.
            if _lock(descriptor) is not False and _is_at(descriptor, self._path):
                return descriptor
            os.close(descriptor)
            if time.monotonic() > patience:
                raise BlockingIOError(
                    errno.EWOULDBLOCK,
                    f"Could not save {self._target}: another process is saving to it. Have each "
                    "run save to a folder of its own.",
                )
            time.sleep(0.05)
        return None

    def _note(self, version: Path, target: Path | None) -> None:
        inodes = version.stat().st_ino, target.stat().st_ino if target is not None else 0
        self._said = self._said._replace(version_inode=inodes[0], target_inode=inodes[1])
        self._write()
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.fsync(self._descriptor)

    def _write(self) -> None:
        # In place and not by a rename: the lock belongs to this file.
        if self._descriptor is not None:
            words = "\n".join(str(each) for each in self._said)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, words.encode("utf-8", "surrogateescape"), 0)


def sweep(folder: Path) -> None:
    """Removes from a folder what killed saves have left there; what is being saved stays."""
    # Another process may sweep too, and the folder may be read-only or gone.
    with contextlib.suppress(OSError):
        for path in sorted(folder.glob(".saving-*")):
            with contextlib.suppress(OSError, RecursionError):  # folders may be nested without end
                if is_own(path):
                    _sweep(path)


def _sweep(path: Path) -> None:
    if path.name.startswith(".saving-removed-") and path.suffix == ".tmp":
        remove(path)
    elif path.name.startswith(_FILE):
        is_ours = path.name.startswith(f"{_FILE}{_lock_domain(path.parent)}-")
        with _locked(path) as descriptor:
            if descriptor is not None and (is_ours or _is_old(path)):
                path.unlink()
    elif path.suffix == ".lock":
        with _locked(path) as descriptor:
            if descriptor is not None:
                _sweep_lock(path, descriptor)
    elif path.suffix == ".tmp" and not path.with_suffix(".lock").exists() and _is_old(path):
        remove(path)


def _sweep_lock(path: Path, descriptor: int) -> None:
    said = _parse(path, descriptor)
    if said is None:  # nobody's, or of a save whose words did not reach the disk
        if _is_old(path):
            path.unlink()
        return
    # A lock without a name is of a save that was killed before it wrote that, and so anything else.
    places = (path, path.with_suffix(".tmp"), path.with_name(said.name or path.name))
    if not said.name or said.domain == _lock_domain(path.parent) or _is_old(*places):
        _clear(path, said)
        path.unlink(missing_ok=True)


def _parse(lock: Path, descriptor: int) -> _Said | None:
    """Returns what a lock says; None if no save of ours has written that in a lock of this name."""
    words = _words(descriptor)
    if words is None:
        return None
    domain, name, version, *inodes = [*words.split("\n"), "", ""][: max(3, words.count("\n") + 1)]
    if not all(each.isascii() and each.isdecimal() for each in inodes) or len(inodes) > 2:
        return None
    if not name:
        return _Said(domain) if not version and not inodes else None
    if not _is_component(name) or (version and not _is_component(version)):
        return None
    # The name of a lock is a hash of its target's: a forged one cannot name another file.
    if temporary_for(lock.with_name(name)).with_suffix(".lock") != lock:
        return None
    return _Said(domain, name, version, *map(int, inodes))


def _is_component(name: str) -> bool:
    """Returns whether a name is one of something directly in a folder."""
    return name not in (".", "..") and "/" not in name and "\0" not in name


def _words(descriptor: int) -> str | None:
    """Returns the content of a file; None if it is too long, or not text."""
    found = os.pread(descriptor, _MAX_WORDS_BYTES + 1, 0)
    try:
        return found.decode() if len(found) <= _MAX_WORDS_BYTES else None
    except UnicodeDecodeError:
        return None


def _is_old(*paths: Path) -> bool:
    """Returns whether nothing in these paths was written lately; links are not followed."""
    now = time.time()
    for path in paths:
        if not os.path.lexists(path):
            continue
        if now - path.lstat().st_mtime <= _MIN_AGE_S:
            return False
        for folder, folders, files in os.walk(path):
            for name in (*folders, *files):
                with contextlib.suppress(FileNotFoundError):
                    if now - Path(folder, name).lstat().st_mtime <= _MIN_AGE_S:
                        return False
    return True


def _lock_domain(folder: Path) -> str:
    """Returns a text that is equal for all who see locks in a folder: one boot, and one mount."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
        return f"{boot}{folder.stat().st_dev:x}"
    except OSError:
        return "unknown"


def _clear(lock: Path, said: _Said, *, follow_target: bool = False) -> None:
    """Removes what a killed save has built, and puts back what it had set aside.

    Args:
        lock: Where it lies beside the target.
        said: What it says; its names lie in the folder of the lock.
        follow_target: Whether the target may be a symbolic link, which only its save can tell.
    """
    temporary = lock.with_suffix(".tmp")
    if is_own(temporary):
        remove(temporary)
    if not said.name:  # killed before it wrote that
        return
    target = lock.with_name(said.name)
    if not said.version:
        recover(target)
    elif said.version_inode and os.path.lexists(target):
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        with _opened(target, flags | (0 if follow_target else os.O_NOFOLLOW)) as folder:
            is_new = os.fstat(folder).st_ino == said.target_inode
            if _clear_version(folder, said) and is_new and all(map(_is_beside, _names(folder))):
                for name in _names(folder):
                    os.unlink(name, dir_fd=folder)
                target.rmdir()


def _clear_version(folder: int, said: _Said) -> bool:
    """Removes the folder of a version that the lock's save has made, unless it is the latest.

    Args:
        folder: The descriptor of the target, so that nobody can put another in its place.
        said: What the lock says.

    Returns:
        Whether the target then holds nothing that would be loaded.
    """
    try:
        with _opened(LATEST, os.O_RDONLY | _UNFOLLOWED, folder) as latest:
            words = _words(latest) if stat.S_ISREG(os.fstat(latest).st_mode) else None
    except FileNotFoundError:
        words = ""
    if words is None or words.strip() == said.version:
        return False
    flags = os.O_RDONLY | os.O_DIRECTORY | _UNFOLLOWED
    with contextlib.suppress(FileNotFoundError), _opened(said.version, flags, folder) as version:
        found = os.fstat(version)
        if found.st_ino != said.version_inode or found.st_uid != os.geteuid():
            return False
        for name in _names(version):
            # By the descriptor: its path may lead to something else by now.
            remove(Path(f"/proc/self/fd/{version}", name))
        os.rmdir(said.version, dir_fd=folder)
    return not words


def _is_beside(name: str) -> bool:
    """Returns whether a file is one that saves put beside the versions and nobody loads."""
    return name in TOOLS or name.startswith(_FILE)


def _names(folder: int) -> set[str]:
    with os.scandir(folder) as found:
        return {each.name for each in found}


@contextlib.contextmanager
def _opened(path: str | Path, flags: int, folder: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, flags, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int | None]:
    """Yields the locked descriptor of a regular file that nobody holds; None if there is none."""
    if not stat.S_ISREG(path.lstat().st_mode):
        yield None
        return
    # NFS emulates `flock` by record locks, and an exclusive one needs a file open for writing.
    with _opened(path, os.O_RDWR | _UNFOLLOWED) as descriptor:
        yield descriptor if _lock(descriptor) and _is_at(descriptor, path) else None


def _is_at(descriptor: int, path: Path) -> bool:
    """Returns whether a path leads to an open file, which may have been removed before its lock."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _open_lock(path: Path) -> int | None:
    """Opens a lock for writing; makes it if there is none, or something that is no lock of ours.

    Returns:
        None if there is something else that cannot be removed.
    """
    while True:
        with contextlib.suppress(FileExistsError):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _UNFOLLOWED, 0o666)
        descriptor = None
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | _UNFOLLOWED)
        if descriptor is not None:
            if _is_usable(descriptor) or _lock(descriptor) is False:
                return descriptor  # in the second case the caller waits for who holds it
            os.close(descriptor)
        try:
            path.unlink(missing_ok=True)
        except OSError:  # a folder, or another user's in a folder like /tmp
            return None


def _is_usable(descriptor: int) -> bool:
    """Returns whether a file may be written to: it has one name, and is this user's or root's."""
    found = os.fstat(descriptor)
    # A hard link would let us write to another file of this user's.
    is_ours = found.st_uid in (os.geteuid(), 0)
    return stat.S_ISREG(found.st_mode) and is_ours and found.st_nlink <= 1


def _lock(file: IO[bytes] | int) -> bool | None:
    """Locks a file until it is closed, or its process ends.

    Returns:
        False where another has, None where the file system cannot.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno == errno.EWOULDBLOCK else None
    return True
