"""Checkpoints at an address that fsspec knows: what rooms ask of a path, for one that is no file.

An object store has no folders, no links and no locks, and shows an object when all of it is there.
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
    """What a store says of an object, under the names of `os.stat_result`."""

    st_ino: int
    """A checksum of the tag or version by which the store tells contents apart; 0 without one."""
    st_mtime_ns: int
    """When it was written, in ns since 1970, by the store's clock; 0 if the store does not say."""
    st_size: int
    """In bytes."""

    @property
    def st_mtime(self) -> float:
        """When it was written, in seconds since 1970."""
        return self.st_mtime_ns / 1e9


class RemotePath:
    """An address, with those of `pathlib.Path`'s methods that whoever looks for checkpoints uses.

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
        """Returns whether there is an object, or a folder with one.

        Raises:
            OSError: The store does not answer; so do the others.
        """
        return bool(self._ask(lambda system, path: system.exists(path)))

    def is_dir(self) -> bool:
        """Returns whether there are objects below it."""
        return bool(self._ask(lambda system, path: system.isdir(path)))

    def is_file(self) -> bool:
        """Returns whether there is an object."""
        return bool(self._ask(lambda system, path: system.isfile(path)))

    def stat(self) -> RemoteStat:
        """Returns what the store says of it; of a folder what it says of its `latest`.

        Raises:
            FileNotFoundError: There is no such object.
        """
        found = self._ask(lambda system, path: system.info(path))
        return (self / LATEST).stat() if _is_folder(found) else self._stat(found)

    def stats(self, names: Collection[str]) -> dict[str, RemoteStat]:
        """Returns the same of those of its entries that are there, in one question if it can.

        Args:
            names: Of the entries.

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
        """Returns the lengths of the objects in it, in bytes, by name.

        Raises:
            FileNotFoundError: There is no such folder.
        """
        listed = self._ask(lambda system, path: system.ls(path, detail=True))
        return {_last(each["name"]): int(each["size"]) for each in listed if not _is_folder(each)}

    def _stat(self, found: Mapping[str, Any]) -> RemoteStat:
        """Returns what the store has said, which it may have to be asked once more."""
        tag = found.get("ETag") or found.get("etag") or found.get("VersionId") or ""
        modified = found.get("LastModified")
        if modified is None:
            with contextlib.suppress(NotImplementedError):
                modified = self._ask(lambda system, path: system.modified(path))
        written = int(modified.timestamp() * 1e9) if modified is not None else 0
        return RemoteStat(zlib.crc32(str(tag).encode()), written, int(found["size"] or 0))

    def iterdir(self) -> Iterator[RemotePath]:
        """Yields what is in it.

        Raises:
            FileNotFoundError: There is no such folder.
        """
        for name in self._ask(lambda system, path: system.ls(path, detail=False)):
            yield self / _last(name)

    @contextlib.contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Opens it for reading.

        Raises:
            FileNotFoundError: There is no such object.
        """
        with _answering(self), self._ask(lambda system, path: system.open(path, "rb")) as file:
            yield file

    def read_small(self, limit: int) -> bytes:
        """Returns what an object holds that has no reason to be large.

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
        """Removes it.

        Raises:
            FileNotFoundError: There is no such object.
        """
        self._ask(lambda system, path: system.rm_file(path))

    def remove(self) -> None:
        """Removes it with all that is below it.

        Raises:
            FileNotFoundError: There is nothing.
        """
        self._ask(lambda system, path: system.rm(path, recursive=True))

    def write(self, write: Callable[[IO[bytes]], object]) -> None:
        """Lets `write` fill it; until all is there, and after a failure, it is what it was.

        Raises:
            OSError: The store does not take it.
        """
        with self.writing() as file:
            write(file)

    @contextlib.contextmanager
    def writing(self) -> Iterator[IO[bytes]]:
        """Opens it for writing; see `write`."""
        with _answering(self):
            system, path = self._system
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
        """Returns what the file system answers, which keeps nothing of an earlier answer."""
        with _answering(self):
            system, path = self._system
            system.invalidate_cache()
            return question(system, path)


def _is_folder(found: Mapping[str, Any]) -> bool:
    return bool(found.get("type") == "directory")


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]


@contextlib.contextmanager
def _answering(path: RemotePath) -> Iterator[None]:
    """Turns what a store's own library raises into an OSError, which callers expect of files.

    It names the address: a store says that access is denied, and not to what.
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
        raise  # a ValueError is what is wrong with a checkpoint
    except Exception as error:
        if type(error).__module__.partition(".")[0] in _STORES:
            raise OSError(f"{path}: {type(error).__name__}: {error}") from error
        raise


_STORES = ("aiobotocore", "aiohttp", "azure", "botocore", "fsspec", "gcsfs", "google", "s3fs")
"""Libraries behind fsspec whose errors are those of a store."""


def opened(path: AnyPath) -> AbstractContextManager[IO[bytes]]:
    """Opens a checkpoint's file for reading, wherever it is; see `open_regular`."""
    return path.open() if isinstance(path, RemotePath) else open_regular(path)


def check_reachable(address: str) -> None:
    """Makes sure that something can be written below an address, before hours of training.

    Raises:
        OSError: The store refuses, or does not answer; names the address and its own words.
        ImportError: What fsspec needs for such addresses is not installed.
    """
    probe = RemotePath(address) / ".lightning_gaudi" / "probe"
    try:
        probe.write(lambda file: file.write(b"lightning-gaudi"))
        with contextlib.suppress(OSError):  # a store may keep whatever it has
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
