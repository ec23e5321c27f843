"""Hands memory over to workers as a fork does: each gets its contents, and changes its own copy.

Large buffers are copied once for all workers of a loader, to a file in memory that each of them
maps. Pickling would copy them for each worker. Torch would move each tensor to `/dev/shm`, which is
small in a container, and send a file descriptor for each, of which a fork server takes 256.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable, Iterable
from multiprocessing.reduction import DupFd
from pathlib import Path
from pickle import PickleBuffer
from typing import Any, TypeAlias

import numpy as np
import torch

Reduced: TypeAlias = "tuple[Callable[..., Any], tuple[Any, ...]]"
Place: TypeAlias = "tuple[int, int, bool]"
"""Begin and end of a buffer in the file, and whether it is read-only."""

MIN_BYTES = 2**16
"""Smaller buffers are pickled."""

_ALIGNMENT = 64


class Memory:
    """A file in memory for workers that start together.

    Args:
        owner: What lives until they have ended.
    """

    def __init__(self, owner: object) -> None:
        self._descriptor = os.memfd_create("workers")
        self.close = weakref.finalize(owner, os.close, self._descriptor)
        """Closes the file, once all workers have it, or with the owner."""
        # By address and length. The buffers are held, so that nothing else gets their addresses.
        self._copies: dict[tuple[int, int], tuple[PickleBuffer, int]] = {}

    def hand_over(self, buffers: Iterable[PickleBuffer]) -> tuple[Any, list[Place]]:
        """Copies new buffers to the file, and returns the arguments of `take_over`."""
        places = []
        for buffer in buffers:
            with buffer.raw() as content:
                start = self._copy(buffer, content)
                places.append((start, start + content.nbytes, content.readonly))
        return DupFd(self._descriptor) if places else None, places

    def _copy(self, buffer: PickleBuffer, content: memoryview) -> int:
        key = (np.frombuffer(content, np.uint8).ctypes.data, content.nbytes)
        if key not in self._copies:
            with open(self._descriptor, "wb", closefd=False) as file:
                end = file.seek(0, os.SEEK_END)
                start = file.seek(end + -end % _ALIGNMENT)
                file.write(content)
            self._copies[key] = (buffer, start)
        return self._copies[key][1]


_memories: weakref.WeakKeyDictionary[Any, Memory] = weakref.WeakKeyDictionary()


def memory_of(owner: object) -> Memory:
    """Returns the memory of workers that start together.

    Args:
        owner: What lives until they have ended.
    """
    if owner not in _memories:
        _memories[owner] = Memory(owner)
    return _memories[owner]


def forget(owner: object) -> None:
    """Frees the memory of workers that have all started."""
    if (memory := _memories.pop(owner, None)) is not None:
        memory.close()


def take_over(descriptor: Any, places: list[Place]) -> list[memoryview]:
    """Returns in a worker the buffers that `Memory.hand_over` was given."""
    if not places:
        return []
    number = descriptor.detach()
    try:
        # Private: a page that a worker writes to becomes its own copy, as after a fork.
        mapped = mmap.mmap(number, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(number)
    whole = memoryview(mapped)
    fixed = whole.toreadonly()
    return [(fixed if is_fixed else whole)[start:end] for start, end, is_fixed in places]


def reduce(obj: Any) -> Reduced | None:
    """Reduces the storage of a tensor, or a mapped array; returns None for other objects."""
    if isinstance(obj, torch.UntypedStorage):
        # A storage that the program has shared itself stays shared, by torch's own way.
        if obj.device.type != "cpu" or obj.size() == 0 or obj.is_shared():
            return None
        content: Any = torch.empty(0, dtype=torch.uint8).set_(obj).numpy()
        return _storage, (PickleBuffer(content),)
    return _reduce_mapped(obj) if type(obj) is np.memmap else None


def _storage(content: Any) -> torch.UntypedStorage:
    return torch.frombuffer(content, dtype=torch.uint8).untyped_storage()


def _reduce_mapped(array: Any) -> Reduced | None:
    """Lets a worker map the file again, unless this process has changed what it has mapped."""
    file = array._mmap
    if file is None or array.mode == "c" or not array.flags.c_contiguous:
        return None
    if array.filename is None or not Path(array.filename).exists():
        return None
    start = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    # A part of an array has the offset of the whole.
    start += array.ctypes.data - np.frombuffer(file, np.uint8).ctypes.data
    mode = "r+" if array.flags.writeable else "r"
    return np.memmap, (array.filename, array.dtype, mode, start, array.shape)
