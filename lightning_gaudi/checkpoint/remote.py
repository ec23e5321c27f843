"""Paths of checkpoints at an address that fsspec knows, such as a bucket.

An object store has no folders, links or locks, and shows an object only when it is complete.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, cast

from fsspec.core import url_to_fs  # type: ignore[import-untyped]

from .folders import AnyPath
from .leftovers import LATEST
from .opening import open_regular, read_limited


class RemoteStat(NamedTuple):
    """What a store tells of an object, under the names of `os.stat_result`."""

    st_ino: int
    """A checksum of the object's ETag or version, which changes with its content; 0 without one."""
    st_mtime_ns: int
    """When it was written, in ns since 1970, by the store's clock; 0 if the store does not say."""
    st_size: int
    """In bytes."""

    @property
    def st_mtime(self) -> float:
        """When it was written, in seconds since 1970."""
        return self.st_mtime_ns / 1e9


class RemotePath:
    """An address, with the methods of `pathlib.Path` that the search for checkpoints uses.

    Args:
        address: Such as "s3://bucket/folder/last.ckpt".
    """

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")

    def __str__(self) -> str:
        return self._address

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self._address == other._address

    def __hash__(self) -> int:
        return hash(self._address)

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self._address}/{name}")

    @cached_property
    def _system(self) -> tuple[Any, str]:
        """The file system, and what the address is called there."""
        return cast("tuple[Any, str]", url_to_fs(self._address))

    @property
    def name(self) -> str:
        """What is behind the last slash."""
        return self._address.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The end of the name from its last dot on."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> RemotePath:
        """The folder that it is in."""
        return RemotePath(self._address.rpartition("/")[0])

    def exists(self) -> bool:
        """Returns whether there is an object, or a folder of some.

        Raises:
            OSError: The store does not answer. The other methods raise it, too.
        """
        return bool(self._ask(lambda system, path: system.exists(path)))

    def is_dir(self) -> bool:
        """Returns whether there are objects below the address."""
        return bool(self._ask(lambda system, path: system.isdir(path)))

    def is_file(self) -> bool:
        """Returns whether there is an object."""
        return bool(self._ask(lambda system, path: system.isfile(path)))

    def stat(self) -> RemoteStat:
        """Returns what the store tells of an object; for a folder, of the `latest` in it.

        Raises:
            FileNotFoundError: There is no such object.
        """
        # A folder of a store has no time of its own, and `latest` is the last object that a save
        # writes.
        found = self._ask(lambda system, path: system.info(path))
        return (self / LATEST).stat() if _is_folder(found) else self._stat(found)

    def stats(self, names: Collection[str]) -> dict[str, RemoteStat]:
        """Returns what the store tells of several entries, by one request where that suffices.

        Args:
            names: The names of the entries; those that are missing are left out.

        Raises:
            OSError: The store does not answer.
        """
        try:
            listed = self._ask(lambda system, path: system.ls(path, detail=True))
        except FileNotFoundError:
            return {}
        found: dict[str, RemoteStat] = {}
        for each in listed:
            name = _last(each["name"])
            if name in names:
                with contextlib.suppress(FileNotFoundError):
                    path = self / name
                    found[name] = path.stat() if _is_folder(each) else path._stat(each)
        return found

    def sizes(self) -> dict[str, int]:
        """Returns the lengths of the objects in this folder, in bytes, by name.

        Raises:
            FileNotFoundError: There is no such folder.
        """
        listed = self._ask(lambda system, path: system.ls(path, detail=True))
        return {_last(each["name"]): int(each["size"]) for each in listed if not _is_folder(each)}

    def _stat(self, found: Mapping[str, Any]) -> RemoteStat:
        """Returns the answer of `info` or `ls`, with a second request if it has no time."""
        # Each file system of fsspec has names of its own for these: s3fs, gcsfs and adlfs differ.
        tag = found.get("ETag") or found.get("etag") or found.get("VersionId") or ""
        modified = found.get("LastModified")
        if modified is None:
            with contextlib.suppress(NotImplementedError):
                modified = self._ask(lambda system, path: system.modified(path))
        written = int(modified.timestamp() * 1e9) if modified is not None else 0
        return RemoteStat(zlib.crc32(str(tag).encode()), written, int(found["size"] or 0))

    def iterdir(self) -> Iterator[RemotePath]:
        """Yields the entries of this folder.

        Raises:
            FileNotFoundError: There is no such folder.
        """
        for name in self._ask(lambda system, path: system.ls(path, detail=False)):
            yield self / _last(name)

    @contextlib.contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Opens the object for reading.

        Raises:
            FileNotFoundError: There is no such object.
        """
        with _answering(self), self._ask(lambda system, path: system.open(path, "rb")) as file:
            yield file

    def read_small(self, limit: int) -> bytes:
        """Returns the content of an object that should be small.

        Raises:
            DamagedCheckpointError: It has more than `limit` bytes.
            FileNotFoundError: There is no such object.
        """
        with self.open() as file:
            return read_limited(file, limit, self)

    def download(self, files: Mapping[str, Path]) -> None:
        """Copies entries to this machine, several at a time where the store allows it.

        Args:
            files: Where to, by their names.
        """
        self._ask(
            lambda system, path: system.get(
                [f"{path}/{name}" for name in files], [str(each) for each in files.values()]
            )
        )

    def unlink(self) -> None:
        """Removes the object.

        Raises:
            FileNotFoundError: There is no such object.
        """
        self._ask(lambda system, path: system.rm_file(path))

    def remove(self) -> None:
        """Removes this folder or object with all that is below it.

        Raises:
            FileNotFoundError: There is nothing.
        """
        self._ask(lambda system, path: system.rm(path, recursive=True))

    def write(self, write: Callable[[IO[bytes]], object]) -> None:
        """Lets `write` fill the object; until that is done, and after a failure, it is unchanged.

        Raises:
            OSError: The store does not take it.
        """
        with self.writing() as file:
            write(file)

    @contextlib.contextmanager
    def writing(self) -> Iterator[IO[bytes]]:
        """Opens the object for writing; see `write`."""
        with _answering(self):
            system, path = self._system
            # With `autocommit` closing the file would publish it, also where the block has raised.
            file = system.open(path, "wb", autocommit=False)
            # Not part of a transaction that somebody else begins or ends meanwhile.
            with contextlib.suppress(ValueError):
                system.transaction.files.remove(file)
            try:
                yield file
                file.close()
                file.commit()
            except BaseException:
                with contextlib.suppress(Exception):  # the first error is the one to tell
                    file.close()
                with contextlib.suppress(Exception):
                    file.discard()
                raise

    def _ask(self, question: Callable[[Any, str], Any]) -> Any:
        """Asks the file system anew, and returns its answer."""
        with _answering(self):
            system, path = self._system
            # fsspec caches listings for as long as the process lives, and other ranks write
            # meanwhile.
            system.invalidate_cache()
            return question(system, path)


def _is_folder(found: Mapping[str, Any]) -> bool:
    return bool(found.get("type") == "directory")


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]


@contextlib.contextmanager
def _answering(path: RemotePath) -> Iterator[None]:
    """Turns the errors of a store's library into OSErrors, which callers expect from files.

    The address is added, since a store says that access was denied but not to what.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and str(path) not in str(error):
            error.args = (f"{path}: {error}",)
            if error.strerror is not None:
                error.strerror = f"{path}: {error.strerror}"
        raise
    except (ValueError, ImportError, NotImplementedError):
        # A ValueError tells what is wrong with a checkpoint (`DamagedCheckpointError`).
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] in _STORES:
            raise OSError(f"{path}: {type(error).__name__}: {error}") from error
        raise


_STORES = ("aiobotocore", "aiohttp", "azure", "botocore", "fsspec", "gcsfs", "google", "s3fs")
"""Packages behind fsspec whose errors come from a store."""


def opened(path: AnyPath) -> AbstractContextManager[IO[bytes]]:
    """Opens a checkpoint's file for reading, local or remote; see `open_regular`."""
    return path.open() if isinstance(path, RemotePath) else open_regular(path)


def check_reachable(address: str) -> None:
    """Writes a probe below an address, so that a wrong one fails before hours of training.

    Raises:
        OSError: The store refuses, or does not answer; names the address and quotes the store.
        ImportError: What fsspec needs for such addresses is not installed.
    """
    probe = RemotePath(address) / ".lightning_gaudi" / "probe"
    try:
        probe.write(lambda file: file.write(b"lightning-gaudi"))
        # Some stores allow writing but not removing, which is enough to save.
        with contextlib.suppress(OSError):
            probe.unlink()
    except ImportError as error:
        raise ImportError(
            f"{address} cannot be written: {error}. Install it, or pass a local folder."
        ) from error
    except Exception as error:
        raise OSError(
            f"{address} cannot be written ({type(error).__name__}: {error}). Checkpoints would be "
            "lost. Correct the address or its rights, or pass another default_root_dir or dirpath."
        ) from error
