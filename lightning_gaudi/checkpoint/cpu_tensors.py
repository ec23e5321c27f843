"""Saves an object with all its tensors as CPU tensors, however deeply they are nested."""

from __future__ import annotations

import pickle
from io import BytesIO
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import IO, Any, cast

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor

from lightning_gaudi._core import own_pickles

from . import plain_types


def save_as_cpu_tensors(obj: Any, file: IO[bytes]) -> None:
    """Saves as `torch.save` does, but with all tensors on the CPU; tied ones stay tied."""
    # The vendor's lazy mode has another default, 4, which torch's `weights_only=True` cannot read.
    protocol = torch.serialization.DEFAULT_PROTOCOL
    torch.save(obj, file, pickle_module=cast("Any", _CPU_PICKLE), pickle_protocol=protocol)


class _CPUPickler(pickle.Pickler):
    """Pickles a tensor of a device as its copy on the CPU."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._buffer: BytesIO = args[0]
        self._copies: dict[tuple[Any, ...], Tensor] = {}
        self._refused: set[str] = set()

    def dump(self, obj: Any) -> None:
        super().dump(obj)
        # Noted before the bytes reach the disk: this process may load what only it can vouch for.
        own_pickles.note(self._buffer.getvalue())
        # Said when it is saved, where it can still be changed, and not when another process fails
        # to load it.
        for name in own_pickles.not_yet_told(self._refused):
            rank_zero_warn(
                f"A checkpoint holds {name}, which is neither a tensor nor plain data. This "
                "process loads it again; another one, and another rank, refuses it unless it calls "
                f"torch.serialization.add_safe_globals([{name}]) first, or passes "
                "weights_only=False. Or keep it out, as by save_hyperparameters(ignore=[...])."
            )

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | FunctionType | BuiltinFunctionType):
            # A class or function is pickled by its name, the one thing that a restricted loader
            # judges.
            self._note_name(f"{obj.__module__}.{obj.__qualname__}")
            return NotImplemented
        # A parameter reduces to its data, a tensor that comes by here next.
        if type(obj) is not Tensor or obj.device.type in ("cpu", "meta"):
            return NotImplemented
        return self._copy(obj).__reduce_ex__(pickle.DEFAULT_PROTOCOL)  # type: ignore[no-untyped-call]

    def _note_name(self, name: str) -> None:
        try:
            plain_types.find(name)
        except LookupError:
            self._refused.add(name)

    def _copy(self, tensor: Tensor) -> Tensor:
        # A state dict detaches each weight, so tied weights are distinct tensors of one storage.
        # One copy for both keeps them tied in the file.
        storage = tensor.untyped_storage()._cdata
        key = (storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        if key not in self._copies:
            self._copies[key] = tensor.detach().cpu()
        return self._copies[key].requires_grad_(tensor.requires_grad)


_CPU_PICKLE = ModuleType("_cpu_pickle", "The pickle module, with tensors on the CPU.")
_CPU_PICKLE.__dict__.update(vars(pickle), __name__="_cpu_pickle", Pickler=_CPUPickler)
