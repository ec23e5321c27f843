"""What killed saves have left: found by the locks of those who save, and swept.

    .saving-file-<seen>-<any>.tmp   a file that is being written, locked by its writer
    .saving-<digest>.tmp            a folder that is being built; see `folders`
    .saving-<digest>.lock           locked while it is; says what is being saved
    .saving-removed-<any>.tmp       a folder that is being removed

A lock may not be seen from another machine, nor through another mount of the same folder (FUSE, by
which two pods of one machine share a volume): what was saved from there must also be old.

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
"""How the name of a file begins that is being written."""

_MIN_AGE_S = 60.0
"""How long nobody must have written to what may be another machine's."""

_PATIENCE_S = 5.0
"""How long to wait for a lock: whoever sweeps has it for a moment."""

_MAX_WORDS_BYTES = 4096
"""How much a lock or a `latest` may say; the names of files have at most 255 bytes."""

_UNFOLLOWED = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""How to open what somebody else may have put there; a pipe without a writer does not block."""


def file_for(target: Path) -> Path:
    """Returns where to write what shall become `target`: not by a name that is looked for."""
    return target.with_name(f"{_FILE}{_lock_domain(target.parent)}-{uuid.uuid4().hex}.tmp")


def create_locked(path: Path) -> IO[bytes]:
    """Makes a file, and holds it locked until it is closed or this process ends.

    Raises:
        OSError: It is there, or cannot be made.
    """
    while True:
        file = path.open("xb")
        with contextlib.suppress(OSError):  # of a file system without locks
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # somebody has swept it before it was locked


class _Said(NamedTuple):
    """What a lock says of the save that holds it."""

    domain: str
    """Who sees the lock; see `_lock_domain`."""
    name: str = ""
    """The target, which lies beside the lock; empty before the save has written it."""
    version: str = ""
    version_inode: int = 0
    """The folder that the save has made for its version, whose name alone would prove nothing."""
    target_inode: int = 0
    """The target, if the save has made it."""


class SaveLock:
    """Tells others that somebody saves; whoever finds it unlocked knows that he was killed.

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
        """Tells that the save has ended; what it has not completed is removed."""
        with contextlib.suppress(OSError, RecursionError):
            _clear(self._path, self._said, follow_target=True)
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def _take(self) -> int | None:
        patience = time.monotonic() + _PATIENCE_S
        while (descriptor := _open_lock(self._path)) is not None:
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
    # Without a name it was killed before it wrote that, and anything else.
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
    if temporary_for(lock.with_name(name)).with_suffix(".lock") != lock:
        return None
    return _Said(domain, name, version, *map(int, inodes))


def _is_component(name: str) -> bool:
    """Tells if it names something that lies directly in a folder, and may be a target there."""
    return name not in (".", "..") and "/" not in name and "\0" not in name


def _words(descriptor: int) -> str | None:
    """Returns a text that is short enough; None if it is longer, or is no text."""
    found = os.pread(descriptor, _MAX_WORDS_BYTES + 1, 0)
    try:
        return found.decode() if len(found) <= _MAX_WORDS_BYTES else None
    except UnicodeDecodeError:
        return None


def _is_old(*paths: Path) -> bool:
    """Tells whether nothing in files or folders was written for a while; links are not followed."""
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
    """Returns what tells who sees the locks taken there: this run of the kernel, by this mount."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
        return f"{boot}{folder.stat().st_dev:x}"
    except OSError:
        return "unknown"


def _clear(lock: Path, said: _Said, *, follow_target: bool = False) -> None:
    """Removes what a killed save has built, and put back what it had set aside.

    Args:
        lock: Where it lies beside the target.
        said: What it says; its names lie in the folder of the lock.
        follow_target: Whether the target may be a symbolic link, as the one who saves knows.
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
    """Removes the folder of a version if the lock's save has made it and it is not the latest.

    Args:
        folder: The target, opened: nobody puts another in its place meanwhile.
        said: What the lock says.

    Returns:
        Whether there is nothing that would be loaded.
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
            remove(Path(f"/proc/self/fd/{version}", name))
        os.rmdir(said.version, dir_fd=folder)
    return not words


def _is_beside(name: str) -> bool:
    """Returns whether a save puts it beside its versions, and nothing of it would be loaded."""
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
    """Opens and locks a regular file that nobody has locked; None if it is something else."""
    if not stat.S_ISREG(path.lstat().st_mode):
        yield None
        return
    # NFS wants to write for a lock.
    with _opened(path, os.O_RDWR | _UNFOLLOWED) as descriptor:
        yield descriptor if _lock(descriptor) and _is_at(descriptor, path) else None


def _is_at(descriptor: int, path: Path) -> bool:
    """Tells if the name still leads to the file; it may have been removed before it was locked."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _open_lock(path: Path) -> int | None:
    """Opens a lock to write to it; makes it, also in the place of what is no lock of this user's.

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
    """Tells if a file may be written to: no other name leads to it, no other user has made it."""
    found = os.fstat(descriptor)
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
