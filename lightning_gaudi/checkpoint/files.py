"""Writes a whole checkpoint at once or not at all, and loads it without running what it holds."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from io import BytesIO
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import urlparse

import torch
from lightning.fabric.utilities.cloud_io import _is_local_file_protocol, get_filesystem
from lightning.fabric.utilities.types import _PATH

from lightning_gaudi._core import hooks
from lightning_gaudi.untrusted import printable

from . import restricted
from .atomic import write_atomically
from .cpu_tensors import save_as_cpu_tensors
from .folders import local_path, make_folder
from .manifest import describe
from .opening import open_regular
from .remote import RemotePath
from .sealed_zip import SealingFile
from .space import check_space, file_bytes, needed_bytes
from .stored_shards import fetched, remove_shards
from .torch_dcp.layout import check_replaceable, is_sharded_folder
from .verify import checking, read_remote


def load_whole(
    path: _PATH, map_location: Any, weights_only: bool | None, *, verify: bool
) -> dict[str, Any]:
    """Loads a checkpoint of any kind, whole; see `HPUCheckpointIO.load_checkpoint`.

    Args:
        path: A local path, or a URL that fsspec knows; also a folder of shards.
        map_location: As for `torch.load`; shards are read onto the CPU.
        weights_only: Whether to load tensors and plain data alone.
        verify: Whether to compare it with its checksums, if it has them.
    """
    if not get_filesystem(path).exists(path):
        raise FileNotFoundError(f"There is no checkpoint at {path}. Check `ckpt_path`.")
    with fetched(path, is_alone=True) as found:
        if _is_local_file_protocol(found) and is_sharded_folder(Path(found)):
            # Imported here since it loads torch's DCP, which only shards need.
            from .torch_dcp.load import load_full_checkpoint

            return load_full_checkpoint(found, weights_only=weights_only, verify=verify)
        if found is not path:
            _refuse_folder(found)
    _refuse_folder(path)
    source: AbstractContextManager[Any] = nullcontext(path)
    if _is_local_file_protocol(path):
        source = checking(local_path(path), with_checksum=verify)
    # An object in a store is read once, into memory, since its checksum must be of the same bytes
    # that are loaded. What comes from the web has no manifest of ours; `load_file` downloads it.
    elif not str(path).startswith("http"):
        source = BytesIO(read_remote(path, with_checksum=verify))
    with source as file:
        checkpoint: dict[str, Any] = load_file(file, map_location, weights_only, name=path)
    return checkpoint


def load_file(
    path: _PATH | IO[bytes],
    map_location: Any = None,
    weights_only: bool | None = None,
    *,
    name: _PATH | None = None,
) -> Any:
    """Loads a file as Lightning does, without running what it holds; see `restricted`.

    Args:
        path: A path, a URL that fsspec knows or one of the web, or an open file.
        map_location: As for `torch.load`.
        weights_only: See `HPUCheckpointIO.load_checkpoint`.
        name: Of an open file, for messages.

    Raises:
        IsADirectoryError: It is a folder, as of shards.
    """
    if not isinstance(path, (str, os.PathLike)):
        return restricted.load(
            path, map_location=map_location, weights_only=weights_only, name=name
        )
    if str(path).startswith(("http:", "https:")):
        return restricted.load(
            _downloaded(str(path)), map_location=map_location, weights_only=weights_only
        )
    if _is_local_file_protocol(path):
        if local_path(path).is_dir():
            raise IsADirectoryError(
                f"{printable(str(path))} is a folder, and a module is loaded from one file. Of a "
                "folder of shards, as FSDP and DeepSpeed save, make one: `lightning-gaudi "
                "consolidate FOLDER weights.ckpt`."
            )
        opened: AbstractContextManager[Any] = open_regular(local_path(path))
    else:
        opened = get_filesystem(path).open(path, "rb")
    with opened as file:
        return restricted.load(
            file, map_location=map_location, weights_only=weights_only, name=path
        )


def _downloaded(url: str) -> Path:
    """Returns the file of an address, where `torch.hub` keeps what it has downloaded.

    Raises:
        ValueError: The address names no file.
    """
    name = urlparse(url).path.rsplit("/", 1)[-1]
    if name in ("", ".", ".."):
        raise ValueError(
            f"{printable(url)} names no file. Pass the address of a checkpoint, with its file name."
        )
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    if not path.exists():
        torch.hub.download_url_to_file(url, str(path))
    return path


def save_file(checkpoint: Mapping[str, Any], target: Path, *, with_manifest: bool = True) -> None:
    """Saves a checkpoint to a local file if there is room for it; a failure changes nothing.

    Args:
        checkpoint: The state of the model and the Trainer; tensors on any device.
        target: The file; its folder is made.
        with_manifest: Whether it shall have a manifest with its checksum.

    Raises:
        OSError: It cannot be written.
    """
    hooks.before_write(lambda: (file_bytes(checkpoint),) * 2)
    check_replaceable(target)
    make_folder(target.parent)
    check_space(target, needed_bytes(checkpoint))
    write_atomically(target, lambda file: _write(checkpoint, file, with_manifest=with_manifest))


def save_remote(checkpoint: Mapping[str, Any], path: _PATH, *, with_manifest: bool) -> None:
    """Saves a checkpoint to an address that fsspec knows, as a whole or not at all."""
    place = RemotePath(str(path))
    place.write(lambda file: _write(checkpoint, file, with_manifest=with_manifest))
    # The file is complete by now: what cannot be removed beside it does not make the save fail.
    with contextlib.suppress(OSError):
        remove_shards(place)


def _write(checkpoint: Mapping[str, Any], file: IO[bytes], *, with_manifest: bool) -> None:
    if with_manifest:
        sealing = SealingFile(file)
        save_as_cpu_tensors(checkpoint, cast("IO[bytes]", sealing))
        sealing.seal(describe(checkpoint))
    else:
        save_as_cpu_tensors(checkpoint, file)


def open_mapped(path: _PATH, *, weights_only: bool | None, verify: bool = True) -> dict[str, Any]:
    """Loads a checkpoint; the tensors of a local one stay in their file until they are used.

    So the processes of a machine share one copy of it in memory, that of the page cache.

    Args:
        path: A local path, or a URL that fsspec knows.
        weights_only: See `HPUCheckpointIO.load_checkpoint`.
        verify: Whether to compare it with the checksum in it, if it has one.

    Raises:
        FileNotFoundError: There is no such file.
        UntrustedCheckpointError: It holds more than tensors and plain data.
        DamagedCheckpointError: It is no checkpoint, or not what was saved; a ValueError.
    """
    if not _is_local_file_protocol(path):
        return load_whole(path, "cpu", weights_only, verify=verify)
    if not Path(path).exists():
        raise FileNotFoundError(f"There is no checkpoint at {path}. Check the path.")
    _refuse_folder(path)
    with checking(local_path(path), with_checksum=verify) as file:
        checkpoint: dict[str, Any] = restricted.load(
            file, mmap=True, weights_only=weights_only, name=path
        )
    return checkpoint


def _refuse_folder(path: _PATH) -> None:
    if _is_local_file_protocol(path) and Path(path).is_dir():
        raise ValueError(
            f"{path} is a folder, but not one of shards that torch's DCP saved. Pass the path of "
            "a checkpoint; `lightning-gaudi consolidate` makes a file of one of DeepSpeed's."
        )
