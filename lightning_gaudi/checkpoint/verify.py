"""Compare checkpoints with their manifests, whatever kind they are."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.fabric.utilities.types import _PATH

from . import zip_file


def check_file(path: Path, *, with_checksum: bool = True) -> None:
    """Compare a whole file with its manifest; one that has none with what a zip file must have.

    Args:
        path: A local file.
        with_checksum: Whether to read all of it.

    Raises:
        DamagedCheckpointError: It is not what was saved; says what it has, and what it should.
        OSError: It cannot be read.
    """
    found = zip_file.inspect(path)
    if with_checksum:
        zip_file.check(found)


@contextmanager
def checking(path: Path, *, with_checksum: bool = True) -> Iterator[None]:
    """Do as `check_file` while a block loads the file; its error comes before the block's.

    It ends when both are through: nothing is used that was not compared.
    """
    found = zip_file.inspect(path)
    if not with_checksum or found.manifest is None:
        yield
        return
    with ThreadPoolExecutor(1, thread_name_prefix="checksum") as pool:
        compared = pool.submit(zip_file.check, found)
        try:
            yield
        except Exception:
            compared.result()
            raise
        compared.result()


def read_remote(path: _PATH, *, with_checksum: bool = True) -> bytes:
    """A file that is somewhere else, read once and compared as `check_file` does.

    Args:
        path: An address that fsspec knows.
        with_checksum: Whether to compare all of it.

    Raises:
        DamagedCheckpointError: It is not what was saved.
    """
    with get_filesystem(path).open(str(path), "rb") as file:
        data: bytes = file.read()
    found = zip_file.inspect_bytes(data, Path(path))
    if with_checksum:
        zip_file.check(found, lambda num_bytes: zip_file.checksum_in_memory(data, num_bytes))
    return data
