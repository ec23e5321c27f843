"""Writes a sharded checkpoint as one file of safetensors, or one that `torch.load` reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_gaudi.untrusted import printable

from .atomic import write_atomically
from .errors import ADVICE, DamagedCheckpointError
from .files import save_file
from .folders import make_folder

_MAX_EXCESS_BYTES = 2**29
"""How much more than twice its values a file may hold, for weights that are tied."""

SUFFIXES = (".safetensors", ".ckpt", ".pt")
"""What the name of such a file may end with."""


def check_output(output: Path) -> None:
    """Refuses a name that does not say which kind of file it shall be.

    Raises:
        ValueError: It ends with no suffix of `SUFFIXES`.
    """
    if output.suffix not in SUFFIXES:
        raise ValueError(
            f"{output} ends with {output.suffix!r}, which is no kind of checkpoint. Pass "
            f"{output.stem}.safetensors for the weights alone, or {output.stem}.ckpt for a "
            "checkpoint of Lightning's."
        )


def write_single_file(checkpoint: Mapping[str, Any], weights: str, output: Path) -> None:
    """Writes a checkpoint; until it is complete, `output` keeps what it had.

    Args:
        checkpoint: All of it, with tensors on the CPU.
        weights: The key of the model's state dict in it, which is all that safetensors hold.
        output: Ends with `.safetensors`, or with `.ckpt` or `.pt` for what `torch.load` reads.

    Raises:
        OSError: It cannot be written.
        ValueError: Its name does not say what it shall be.
    """
    check_output(output)
    make_folder(output.parent)
    if output.suffix != ".safetensors":
        save_file(dict(checkpoint), output)
        return
    from safetensors.torch import save_file as save_tensors

    # safetensors refuses tensors that share memory, and a strict `load_state_dict` wants the names
    # of all tied weights: so each name gets values of its own.
    tensors = _untied(_checked(checkpoint.get(weights)))
    write_atomically(output, lambda file: save_tensors(tensors, file.name, {"format": "pt"}))


def _checked(weights: Any) -> Mapping[str, Tensor]:
    """Returns the weights if all are tensors with values that safetensors can hold.

    Raises:
        DamagedCheckpointError: They are not, or repeat few values to far more bytes.
    """
    is_named = isinstance(weights, Mapping) and all(isinstance(name, str) for name in weights)
    if not is_named or not all(isinstance(each, Tensor) for each in weights.values()):
        raise DamagedCheckpointError(
            f"The checkpoint has no weights, but {type(weights).__name__} or other values among "
            f"them. {ADVICE}"
        )
    storages: dict[int, int] = {}
    written = 0
    for name, tensor in weights.items():
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            raise DamagedCheckpointError(
                f"{printable(name)} has no values as safetensors hold them: its layout is "
                f"{tensor.layout}, on {tensor.device}. Write a .ckpt file instead."
            )
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        written += tensor.numel() * tensor.itemsize
    # A tensor with a stride of 0 is small in memory and in the checkpoint, and written out it fills
    # the disk.
    if written > 2 * sum(storages.values()) + _MAX_EXCESS_BYTES:
        raise DamagedCheckpointError(
            f"The checkpoint's weights repeat {sum(storages.values()):,} bytes to {written:,}, "
            f"which no model does. Write a .ckpt file instead. {ADVICE}"
        )
    checked: Mapping[str, Tensor] = weights
    return checked


def _untied(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    seen: set[int] = set()
    result = {}
    for name, tensor in weights.items():
        storage = tensor.untyped_storage().data_ptr()
        result[name] = tensor.contiguous() if storage not in seen else tensor.clone().contiguous()
        seen.add(storage)
    return result
