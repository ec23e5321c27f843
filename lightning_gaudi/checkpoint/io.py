"""`HPUCheckpointIO`: checkpoints that any machine can load."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import urlparse

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.fabric.utilities.cloud_io import _is_local_file_protocol, get_filesystem
from lightning.fabric.utilities.types import _PATH
from typing_extensions import override

from lightning_gaudi._core import collectives, hooks
from lightning_gaudi.untrusted import printable

from .atomic import write_atomically
from .background import BackgroundWriter
from .cpu_tensors import save_as_cpu_tensors
from .folders import make_folder, remove_at_once
from .manifest import describe
from .opening import open_regular
from .sealed_zip import SealingFile
from .snapshot import HostMemory, keep
from .space import check_space, file_bytes, needed_bytes
from .torch_dcp.layout import check_replaceable, is_sharded_folder
from .verify import checking, read_remote


class HPUCheckpointIO(TorchCheckpointIO):
    """Saves checkpoints as CPU tensors, at once or not at all, and loads what any other saved.

    Args:
        verify: Whether to save checkpoints with a manifest of checksums, and to compare those that
            have one when they are loaded. A strategy sets it to its `verify_checkpoints`.
    """

    def __init__(self, verify: bool = True) -> None:
        self.verify = verify
        self._background: BackgroundWriter | None = None
        self._memory = HostMemory()
        self._group: Any = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being written in a thread."""
        return self._background is None or self._background.is_idle

    @property
    def is_background(self) -> bool:
        """Whether what is saved is copied now and written later."""
        return self._background is not None

    def start_background(self, group: Any = None) -> None:
        """Writes local files, from now on, in a thread, from a copy of what is saved.

        Args:
            group: Over which the threads of all ranks write together, if they do; see
                `_core.collectives.group_apart`. It is left when this ends.
        """
        if self._background is None:
            self._background, self._group = BackgroundWriter(), group

    def check_background(self) -> None:
        """Raises what has gone wrong in the thread, if anything."""
        if self._background is not None:
            self._background.check()

    def stop_background(self) -> None:
        """Waits for what is being written; what is saved from now on is on disk at once.

        Raises:
            OSError: It could not be written.
        """
        background, self._background = self._background, None
        group, self._group = self._group, None
        if background is not None:
            self._memory = HostMemory()
            try:
                background.close()
            finally:
                collectives.leave(group)

    def switch_verify(self, is_on: bool) -> None:
        """Verifies from now on, or no more."""
        self.verify = is_on

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: _PATH, storage_options: Any | None = None
    ) -> None:
        """Saves `checkpoint`; until it is complete, `path` keeps what it had, in shards or not.

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
            self._save_file(checkpoint, local_path(path))
            return
        system = get_filesystem(path)
        # A transaction: without one, what is half written would be kept after an error.
        with system.transaction, system.open(str(path), "wb") as file:
            _write(checkpoint, file, with_manifest=self.verify)

    def write(self, prepare: Callable[[HostMemory | None], Callable[[], None]]) -> None:
        """Writes something, at once or in the thread.

        Args:
            prepare: Returns what writes it. If it gets memory, it copies there what it writes.

        Raises:
            OSError: What was to be written in the thread before could not be.
        """
        if self._background is None:
            prepare(None)()
            return
        self._background.wait()  # so that there are never two copies
        self._memory.begin()
        write, group = prepare(self._memory), self._group

        def write_apart() -> None:
            with collectives.apart(group):
                write()

        self._background.save(write_apart)

    def _save_file(self, checkpoint: dict[str, Any], target: Path) -> None:
        verify = self.verify

        def prepare(memory: HostMemory | None) -> Callable[[], None]:
            state = keep(checkpoint, memory)
            return lambda: save_file(state(), target, with_manifest=verify)

        self.write(prepare)

    @override
    def load_checkpoint(
        self,
        path: _PATH,
        map_location: Callable[..., Any] | Any | None = lambda storage, location: storage,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Loads a checkpoint, onto the CPU unless told otherwise.

        Args:
            path: A local path, or a URL that fsspec knows; also a folder of shards, which is then
                read whole.
            map_location: As for `torch.load`; shards are read onto the CPU.
            weights_only: Whether to load tensors and plain data alone. None for True, unless the
                user trusts checkpoints: see `ReliabilitySettings`.

        Raises:
            FileNotFoundError: There is no such file.
            DamagedCheckpointError: It is not what was saved, or a part is missing; a ValueError.
            UntrustedCheckpointError: The file holds more than that.
        """
        if self._background is not None:
            self._background.wait()
        if not get_filesystem(path).exists(path):
            raise FileNotFoundError(f"There is no checkpoint at {path}. Check `ckpt_path`.")
        if _is_local_file_protocol(path) and is_sharded_folder(Path(path)):
            from .torch_dcp.load import load_full_checkpoint  # torch's DCP, for who has shards

            return load_full_checkpoint(path, weights_only=weights_only, verify=self.verify)
        _refuse_folder(path)
        source: AbstractContextManager[Any] = nullcontext(path)
        if _is_local_file_protocol(path):
            source = checking(local_path(path), with_checksum=self.verify)
        elif not str(path).startswith("http"):
            source = BytesIO(read_remote(path, with_checksum=self.verify))
        with source as file:
            checkpoint: dict[str, Any] = load_file(file, map_location, weights_only, name=path)
        return checkpoint

    @override
    def remove_checkpoint(self, path: _PATH) -> None:
        """Removes a checkpoint, at once: if this is killed, nothing half is left by its name."""
        if _is_local_file_protocol(path):
            remove = partial(remove_at_once, local_path(path))
            if self._background is None:
                remove()
            else:
                self._background.remove(remove)
        else:
            super().remove_checkpoint(path)


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
        return _load(path, map_location=map_location, weights_only=weights_only, name=name)
    if str(path).startswith(("http:", "https:")):
        return _load(_downloaded(str(path)), map_location=map_location, weights_only=weights_only)
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
        return _load(file, map_location=map_location, weights_only=weights_only, name=path)


def _load(file: Any, **options: Any) -> Any:
    from . import restricted  # what reads checkpoints is loaded when one is read

    return restricted.load(file, **options)


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
    """Saves a checkpoint to a local file, once there is room for it; until then nothing changes.

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


def local_path(path: _PATH) -> Path:
    """Returns a path of this machine's, which may be written as an address."""
    return Path(get_filesystem(path)._strip_protocol(str(path)))


def _write(checkpoint: Mapping[str, Any], file: IO[bytes], *, with_manifest: bool) -> None:
    if with_manifest:
        sealing = SealingFile(file)
        save_as_cpu_tensors(checkpoint, cast("IO[bytes]", sealing))
        sealing.seal(describe(checkpoint))
    else:
        save_as_cpu_tensors(checkpoint, file)


def open_mapped(path: _PATH, *, weights_only: bool | None, verify: bool = True) -> dict[str, Any]:
    """Loads a checkpoint whose tensors stay in their file until they are used, if it is local.

    So the processes of a machine have one copy of it in memory together.

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
        return HPUCheckpointIO(verify).load_checkpoint(path, "cpu", weights_only)
    if not Path(path).exists():
        raise FileNotFoundError(f"There is no checkpoint at {path}. Check the path.")
    _refuse_folder(path)
    with checking(local_path(path), with_checksum=verify) as file:
        checkpoint: dict[str, Any] = _load(file, mmap=True, weights_only=weights_only, name=path)
    return checkpoint


def _refuse_folder(path: _PATH) -> None:
    if _is_local_file_protocol(path) and Path(path).is_dir():
        raise ValueError(
            f"{path} is a folder, and none of shards that torch's DCP has saved. Pass the path of "
            "a checkpoint; `lightning-gaudi consolidate` makes a file of one of DeepSpeed's."
        )
