"""Checkpoints at an address that fsspec knows: what rooms ask of a path, for one that is no file.

An object store has no folders, no links and no locks, and shows an object when all of it is there.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, cast

from fsspec.core import url_to_fs  # type: ignore[import-untyped]
from lightning.fabric.utilities.cloud_io import _is_local_file_protocol
from lightning.fabric.utilities.types import _PATH

from .folders import local_path
from .opening import open_regular


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

    def stat(self) -> RemoteStat:
        """Returns what the store says of it.

        Raises:
            FileNotFoundError: There is no such object.
        """
        found = self._ask(lambda system, path: system.info(path))
        tag = found.get("ETag") or found.get("etag") or found.get("VersionId") or ""
        written = 0
        with contextlib.suppress(NotImplementedError):
            modified = self._ask(lambda system, path: system.modified(path))
            written = int(modified.timestamp() * 1e9)
        return RemoteStat(zlib.crc32(str(tag).encode()), written, int(found["size"] or 0))

    def iterdir(self) -> Iterator[RemotePath]:
        """Yields what is in it.

        Raises:
            FileNotFoundError: There is no such folder.
        """
        for name in self._ask(lambda system, path: system.ls(path, detail=False)):
            yield self / name.rstrip("/").rpartition("/")[2]

    @contextlib.contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Opens it for reading.

        Raises:
            FileNotFoundError: There is no such object.
        """
        with _answering(self), self._ask(lambda system, path: system.open(path, "rb")) as file:
            yield file

    def unlink(self) -> None:
        """Removes it.

        Raises:
            FileNotFoundError: There is no such object.
        """
        self._ask(lambda system, path: system.rm(path))

    def write(self, write: Callable[[IO[bytes]], object]) -> None:
        """Lets `write` fill it; until all is there, and after a failure, it is what it was.

        Raises:
            OSError: The store does not take it.
        """
        # A file system of its own: what others write to theirs meanwhile, such as a logger, is not
        # part of the transaction. Without one, what is half written would be kept after an error.
        with _answering(self):
            system, path = url_to_fs(self._address, skip_instance_cache=True)
            with system.transaction, system.open(path, "wb") as file:
                write(file)

    def _ask(self, question: Callable[[Any, str], Any]) -> Any:
        """Returns what the file system answers, which keeps nothing of an earlier answer."""
        with _answering(self):
            system, path = self._system
            system.invalidate_cache()
            return question(system, path)


@contextlib.contextmanager
def _answering(path: RemotePath) -> Iterator[None]:
    """Has what a store's own library raises be an OSError, which its callers expect of files."""
    try:
        yield
    except (OSError, ValueError, ImportError, NotImplementedError):
        raise  # a ValueError is what is wrong with a checkpoint
    except Exception as error:
        if type(error).__module__.partition(".")[0] in _STORES:
            raise OSError(f"{path}: {type(error).__name__}: {error}") from error
        raise


_STORES = ("aiobotocore", "aiohttp", "azure", "botocore", "fsspec", "gcsfs", "google", "s3fs")
"""Libraries behind fsspec whose errors are those of a store."""


AnyPath = Path | RemotePath


def place_of(path: _PATH) -> AnyPath:
    """Returns where a path or an address leads to: on this machine, or somewhere else."""
    return local_path(path) if _is_local_file_protocol(path) else RemotePath(str(path))


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
            "lost: correct the address or its rights, or pass another default_root_dir or dirpath."
        ) from error
