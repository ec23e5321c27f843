"""A copy of a state as it is now, on the CPU: what trains may go on while the copy is written."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override


class Snapshot:
    """The state of any objects, with their tensors on the CPU.

    Tied tensors stay tied. All else is copied as pickle does it, so that what cannot be saved is
    said here.

    Args:
        state: What shall be saved.
        copies_cpu: Whether tensors that are on the CPU already are copied, too; otherwise they
            must not change until the snapshot is written.
    """

    def __init__(self, state: Any, *, copies_cpu: bool) -> None:
        buffer = io.BytesIO()
        pickler = _Pickler(buffer, copies_cpu)
        pickler.dump(state)
        self.tensors = pickler.tensors
        self._pickled = buffer.getvalue()

    def state(self) -> Any:
        """The objects, made anew; their tensors are the snapshot's."""
        return _Unpickler(io.BytesIO(self._pickled), self.tensors).load()

    @property
    def num_pickled_bytes(self) -> int:
        """How much there is beside the tensors."""
        return len(self._pickled)


class _Pickler(pickle.Pickler):
    """Keeps tensors apart."""

    def __init__(self, file: io.BytesIO, copies_cpu: bool) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._copies_cpu = copies_cpu
        self._numbers: dict[Any, int] = {}
        self.tensors: list[Tensor] = []

    @override
    def persistent_id(self, obj: Any) -> Any:
        # A parameter reduces to its data, a tensor that comes by here next.
        if type(obj) is not Tensor:
            return None
        key = _key(obj)
        if key not in self._numbers:
            self._numbers[key] = len(self.tensors)
            self.tensors.append(self._copy(obj))
        return self._numbers[key]

    def _copy(self, tensor: Tensor) -> Tensor:
        is_kept = tensor.device.type == "meta" or (
            tensor.device.type == "cpu" and not self._copies_cpu
        )
        if is_kept:
            return tensor
        found = tensor.detach()
        found = found.clone() if found.device.type == "cpu" else found.cpu()
        return found.requires_grad_(tensor.requires_grad)


class _Unpickler(pickle.Unpickler):
    """Reads what this process has just pickled."""

    def __init__(self, file: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    @override
    def persistent_load(self, pid: Any) -> Any:
        return self._tensors[pid]


def _key(tensor: Tensor) -> Any:
    """What tells tensors of the same values apart from others; see `cpu_tensors`."""
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
