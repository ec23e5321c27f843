"""Copies a state to the CPU, so that training may go on while the copy is written."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from typing_extensions import override


class Snapshot:
    """A copy of any objects with their tensors on the CPU; of sharded ones this rank's part.

    Tied tensors stay tied. All other objects are pickled, so that one which cannot be saved raises
    here and not later in the thread.

    Args:
        state: What shall be saved.
        memory: The memory to copy into, valid until its next `begin`; tensors of the CPU are
            copied, too. None for new memory; then tensors of the CPU are not copied, and must not
            change until they are written.
    """

    def __init__(self, state: Any, memory: HostMemory | None = None) -> None:
        buffer = io.BytesIO()
        pickler = _Pickler(buffer, memory)
        pickler.dump(state)
        self.tensors = pickler.tensors
        self._pickled = buffer.getvalue()

    def state(self) -> Any:
        """Returns new objects whose tensors are the snapshot's."""
        return _Unpickler(io.BytesIO(self._pickled), self.tensors).load()

    @property
    def num_pickled_bytes(self) -> int:
        """The size of all that is not in tensors."""
        return len(self._pickled)


def keep(state: Any, memory: HostMemory | None) -> Callable[[], Any]:
    """Returns a function that returns the state: a copy if `memory` is given, else itself."""
    return (lambda: state) if memory is None else Snapshot(state, memory).state


class HostMemory:
    """Pinned tensors on the CPU that are reused, since to allocate takes longer than to copy.

    A run keeps as much of it as its state has.
    """

    def __init__(self) -> None:
        self._all: dict[Any, list[Tensor]] = {}
        self._used: dict[Any, int] = {}

    def begin(self) -> None:
        """Allows what was copied before to be overwritten from now on."""
        # What the last copy did not use is freed: a state may have become smaller.
        kept = {key: self._all[key][:number] for key, number in self._used.items()}
        self._all, self._used = kept or self._all, {}

    def copy(self, tensor: Tensor) -> Tensor:
        """Returns a copy of a contiguous tensor of any device."""
        # By shape and order, and not by name: a state has the same tensors in the same order each
        # time.
        key = (tensor.shape, tensor.dtype)
        tensors, number = self._all.setdefault(key, []), self._used.get(key, 0)
        self._used[key] = number + 1
        if number == len(tensors):
            tensors.append(_pinned(tensor))
        return tensors[number].detach().copy_(tensor)


def _pinned(tensor: Tensor) -> Tensor:
    try:
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    except RuntimeError:  # there is no device to pin for
        return torch.empty(tensor.shape, dtype=tensor.dtype)


class _Pickler(pickle.Pickler):
    """Pickles a state with its tensors taken out, each copied once."""

    def __init__(self, file: io.BytesIO, memory: HostMemory | None) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._memory = memory
        self._numbers: dict[Any, int] = {}
        # Held until the end: Python reuses the id of a freed object, and ids are keys.
        self._sources: list[Any] = []
        self.tensors: list[Any] = []

    @override
    def persistent_id(self, obj: Any) -> Any:
        # A parameter reduces to its data, a tensor that comes by here next.
        if type(obj) is Tensor:
            key, copy = _key(obj), self._copy
        elif isinstance(obj, Tensor) and is_traceable_wrapper_subclass(obj):  # as DTensor is
            key, copy = id(obj), self._copy_inner
        elif hasattr(obj, "local_shards"):  # a ShardedTensor
            key, copy = id(obj), self._copy_shards
        else:
            return None
        if key not in self._numbers:
            self._numbers[key] = len(self.tensors)
            self.tensors.append(copy(obj))
            self._sources.append(obj)
        return self._numbers[key]

    def _copy_inner(self, tensor: Any) -> Any:
        names, context = tensor.__tensor_flatten__()
        inner = {name: getattr(tensor, name) for name in names}  # since torch 2.13 its mesh, too
        inner = {
            name: self._copy(each) if isinstance(each, Tensor) else each
            for name, each in inner.items()
        }
        return type(tensor).__tensor_unflatten__(inner, context, tensor.size(), tensor.stride())

    def _copy_shards(self, tensor: Any) -> Any:
        """Returns a ShardedTensor of what FSDP has moved to the CPU."""
        shards = tensor.local_shards()
        return type(tensor)._init_from_local_shards_and_global_metadata(
            [type(each)(self._copy(each.tensor), each.metadata) for each in shards],
            sharded_tensor_metadata=tensor.metadata(),
            process_group=tensor._process_group,
        )

    def _copy(self, tensor: Tensor) -> Tensor:
        is_here = tensor.device.type == "cpu"
        if tensor.device.type == "meta" or (is_here and self._memory is None):
            return tensor
        found = tensor.detach()
        if self._memory is not None and found.layout == torch.strided and found.is_contiguous():
            found = self._memory.copy(found)
        else:
            found = found.clone() if is_here else found.cpu()
        return found.requires_grad_(tensor.requires_grad)


class _Unpickler(pickle.Unpickler):
    """Puts the tensors back into what this process has just pickled."""

    def __init__(self, file: io.BytesIO, tensors: list[Any]) -> None:
        super().__init__(file)
        self._tensors = tensors

    @override
    def persistent_load(self, pid: Any) -> Any:
        return self._tensors[pid]


def _key(tensor: Tensor) -> Any:
    """Returns a key that is equal for tensors of the same values, such as tied ones."""
    if tensor.layout != torch.strided:
        return id(tensor)
    storage = tensor.untyped_storage()._cdata
    return (
        storage,
        tensor.storage_offset(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.requires_grad,
    )
