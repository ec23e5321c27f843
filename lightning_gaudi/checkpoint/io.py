"""`HPUCheckpointIO` saves checkpoints that any machine can load.

The modules that write and read them are imported when one is written or read, so that the start of
a run does not pay for them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from lightning.fabric.plugins import TorchCheckpointIO
from lightning.fabric.utilities.cloud_io import _is_local_file_protocol
from lightning.fabric.utilities.types import _PATH
from typing_extensions import override

from lightning_gaudi._core import collectives

from .folders import local_path, remove_at_once

if TYPE_CHECKING:
    from .background import BackgroundWriter
    from .snapshot import HostMemory


class HPUCheckpointIO(TorchCheckpointIO):
    """Saves checkpoints as CPU tensors, at once or not at all, and loads those of any machine.

    Args:
        verify: Whether to save checkpoints with a manifest of checksums, and to compare those that
            have one when they are loaded. A strategy sets it to its `verify_checkpoints`.
    """

    def __init__(self, verify: bool = True) -> None:
        self.verify = verify
        self._background: BackgroundWriter | None = None
        self._memory: HostMemory | None = None
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
        """Writes files, from now on, in a thread, from a copy of what is saved.

        Args:
            group: Over which the threads of all ranks write together, if they do; see
                `_core.collectives.group_apart`. It is left when this ends.
        """
        from .background import BackgroundWriter
        from .snapshot import HostMemory

        if self._background is None:
            self._background, self._group = BackgroundWriter(), group
            self._memory = HostMemory()

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
            # The pinned copy is as large as the state: it is given back with the thread.
            self._memory = None
            try:
                background.close()
            finally:
                collectives.leave(group)

    def switch_verify(self, is_on: bool) -> None:
        """Sets whether checkpoints are verified from now on."""
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
        self._save(checkpoint, path)

    def write(self, prepare: Callable[[HostMemory | None], Callable[[], None]]) -> None:
        """Writes something, at once or in the thread.

        Args:
            prepare: Returns what writes it. If it gets memory, it copies there what it writes.

        Raises:
            OSError: What was to be written in the thread before could not be.
        """
        if self._background is None or self._memory is None:
            prepare(None)()
            return
        # The copy that is being written must not be overwritten, and two of them would take twice
        # the memory.
        self._background.wait()
        self._memory.begin()
        write, group = prepare(self._memory), self._group

        def write_apart() -> None:
            # The main thread trains meanwhile. With a process group of their own the threads of the
            # ranks do not mix their collectives with those of the training.
            with collectives.apart(group):
                write()

        self._background.save(write_apart)

    def _save(self, checkpoint: dict[str, Any], path: _PATH) -> None:
        from . import files
        from .snapshot import keep

        # Read now: the thread writes later, when the setting may have changed.
        verify = self.verify
        is_local = _is_local_file_protocol(path)
        target = local_path(path) if is_local else path
        save: Callable[..., None] = files.save_file if is_local else files.save_remote

        def prepare(memory: HostMemory | None) -> Callable[[], None]:
            state = keep(checkpoint, memory)
            return lambda: save(state(), target, with_manifest=verify)

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
        # The file may be the one that is still being written.
        if self._background is not None:
            self._background.wait()
        from . import files

        return files.load_whole(path, map_location, weights_only, verify=self.verify)

    @override
    def remove_checkpoint(self, path: _PATH) -> None:
        """Removes a checkpoint; if this is killed, no part of it is left under its name."""
        if _is_local_file_protocol(path):
            remove = partial(remove_at_once, local_path(path))
        else:
            from .remote import RemotePath
            from .stored_shards import remove_stored

            remove = partial(remove_stored, RemotePath(str(path)))
        if self._background is None:
            remove()
        else:
            self._background.remove(remove)
