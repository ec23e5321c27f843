"""`HPUCheckpointIO`: checkpoints that any machine can load."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlparse

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.fabric.utilities.cloud_io import _is_local_file_protocol, get_filesystem
from lightning.fabric.utilities.types import _PATH
from typing_extensions import override

from . import restricted
from .atomic import write_atomically
from .cpu_tensors import save_as_cpu_tensors
from .torch_dcp.layout import check_replaceable, is_sharded_folder


class HPUCheckpointIO(TorchCheckpointIO):
    """Saves checkpoints as CPU tensors, at once or not at all, and loads what any other saved."""

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: _PATH, storage_options: Any | None = None
    ) -> None:
        """Save `checkpoint`; until it is complete, `path` keeps what it had, be it in shards.

        Args:
            checkpoint: The state of the model and the Trainer; tensors on any device.
            path: A local path, or a URL that fsspec knows.
            storage_options: Not supported.

        Raises:
            TypeError: `storage_options` are given.
            OSError: The file cannot be written, such as when the disk is full.
        """
        if storage_options is not None:
            raise TypeError(
                f"HPUCheckpointIO has no use for storage_options={storage_options!r}. Leave them "
                "out, or pass a CheckpointIO of your own in Trainer(plugins=...)."
            )
        if _is_local_file_protocol(path):
            target = Path(get_filesystem(path)._strip_protocol(str(path)))
            check_replaceable(target)
            target.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(target, lambda file: save_as_cpu_tensors(checkpoint, file))
            return
        system = get_filesystem(path)
        # A transaction: without one, what is half written would be kept after an error.
        with system.transaction, system.open(str(path), "wb") as file:
            save_as_cpu_tensors(checkpoint, file)

    @override
    def load_checkpoint(
        self,
        path: _PATH,
        map_location: Callable[..., Any] | Any | None = lambda storage, location: storage,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Load a checkpoint, onto the CPU unless told otherwise.

        Args:
            path: A local path, or a URL that fsspec knows; also a folder of shards, which is then
                read whole.
            map_location: As for `torch.load`; shards are read onto the CPU.
            weights_only: Whether to load tensors and plain data alone. None for True, unless the
                user trusts checkpoints: see `ReliabilitySettings`.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: A file of a folder of shards is missing or truncated.
            UntrustedCheckpointError: The file holds more than that.
        """
        if not get_filesystem(path).exists(path):
            raise FileNotFoundError(f"There is no checkpoint at {path}. Check `ckpt_path`.")
        if _is_local_file_protocol(path) and is_sharded_folder(Path(path)):
            from .torch_dcp.load import load_full_checkpoint  # torch's DCP, for who has shards

            return load_full_checkpoint(path, weights_only=weights_only)
        _refuse_folder(path)
        checkpoint: dict[str, Any] = load_file(path, map_location, weights_only)
        return checkpoint


def load_file(
    path: _PATH | IO[bytes], map_location: Any = None, weights_only: bool | None = None
) -> Any:
    """Load a file as Lightning does, without running what it holds; see `restricted`.

    Args:
        path: A path, a URL that fsspec knows or one of the web, or an open file.
        map_location: As for `torch.load`.
        weights_only: See `HPUCheckpointIO.load_checkpoint`.
    """
    if not isinstance(path, (str, os.PathLike)):
        return restricted.load(path, map_location=map_location, weights_only=weights_only)
    if str(path).startswith(("http:", "https:")):
        return restricted.load(
            _downloaded(str(path)), map_location=map_location, weights_only=weights_only
        )
    with get_filesystem(path).open(path, "rb") as file:
        return restricted.load(
            file, map_location=map_location, weights_only=weights_only, name=path
        )


def _downloaded(url: str) -> Path:
    """The file of an address, where `torch.hub` keeps what it has downloaded."""
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / Path(urlparse(url).path).name
    if not path.exists():
        torch.hub.download_url_to_file(url, str(path))
    return path


def open_mapped(path: _PATH, *, weights_only: bool | None) -> dict[str, Any]:
    """Load a checkpoint whose tensors stay in their file until they are used, if it is local.

    So the processes of a machine have one copy of it in memory together.

    Args:
        path: A local path, or a URL that fsspec knows.
        weights_only: See `HPUCheckpointIO.load_checkpoint`.

    Raises:
        FileNotFoundError: There is no such file.
        UntrustedCheckpointError: It holds more than tensors and plain data.
        ValueError: It is no checkpoint, or a truncated one.
    """
    if not _is_local_file_protocol(path):
        return HPUCheckpointIO().load_checkpoint(path, "cpu", weights_only)
    if not Path(path).exists():
        raise FileNotFoundError(f"There is no checkpoint at {path}. Check the path.")
    _refuse_folder(path)
    try:
        checkpoint: dict[str, Any] = restricted.load(
            path, mmap=zipfile.is_zipfile(path), weights_only=weights_only
        )
    except (RuntimeError, EOFError) as error:
        raise ValueError(
            f"{path} is no checkpoint, or truncated or damaged ({error}). Use another one, or copy "
            "it again from where it was saved."
        ) from error
    return checkpoint


def _refuse_folder(path: _PATH) -> None:
    if _is_local_file_protocol(path) and Path(path).is_dir():
        raise ValueError(
            f"{path} is a folder, and none of shards that torch's DCP has saved. Pass the path of "
            "a checkpoint; `lightning-gaudi consolidate` makes a file of one of DeepSpeed's."
        )
