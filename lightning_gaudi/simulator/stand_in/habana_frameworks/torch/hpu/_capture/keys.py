"""Finds the graph for inputs, and copies new inputs to where the graph reads them.

Source: `input_hash`, `copy_to` and their like in `hpu/graphs.py`, 1.19, 2025 and 1.24.0.
"""

from __future__ import annotations

import collections
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from lightning_gaudi.simulator.settings import read_release

from ..autocast import is_autocast_hpu_enabled


def input_hash(obj: Any) -> int:
    """Returns a number that is equal for inputs that one graph serves.

    Tensors count by shape, kind of view and whether autocast is on, since 1.24 by dtype too; lists,
    dicts and dataclasses by what they hold; everything else by its own hash, so that an object
    without one of its own is another input each time that it is made anew.

    Raises:
        TypeError: Something among them cannot be hashed.
    """
    if isinstance(obj, dict):
        return input_hash(tuple(obj.items()))
    if isinstance(obj, list) or (isinstance(obj, tuple) and not isinstance(obj, torch.Size)):
        return hash((tuple(map(input_hash, obj)), is_autocast_hpu_enabled()))
    if isinstance(obj, torch.Tensor):
        dtype = obj.dtype if read_release().number >= 124 else None
        return hash((dtype, obj.shape, view_hash(obj), is_autocast_hpu_enabled()))
    if isinstance(obj, collections.UserDict):
        return hash(tuple((key, tuple(map(input_hash, value))) for key, value in obj.items()))
    if _is_record(obj):
        return hash(tuple((f.name, input_hash(getattr(obj, f.name))) for f in fields(obj)))
    return hash((obj, is_autocast_hpu_enabled()))


def view_hash(tensor: torch.Tensor) -> int:
    """Returns 0 for a tensor that fills its memory in order, else a hash of its place in memory."""
    if tensor.device.type != "hpu":
        return 0
    num_bytes = tensor.untyped_storage().nbytes()
    if tensor.is_contiguous() and tensor.numel() * tensor.itemsize == num_bytes:
        return 0
    return hash((num_bytes // tensor.itemsize, tensor.storage_offset(), tensor.stride()))


def copy_to(dst: Any, src: Any) -> None:
    """Copies the tensors among new inputs to those of the capture.

    Tensors outside of dicts, lists, tuples and dataclasses stay as they were at the capture.

    Raises:
        AssertionError: The new inputs are not built like those of the capture.
    """
    if type(dst) is not type(src):
        raise AssertionError(
            f"A captured graph got a {type(dst).__name__} at its capture and a "
            f"{type(src).__name__} at its replay. Give it arguments of the same types."
        )
    if isinstance(dst, dict):
        if list(dst) != list(src):
            raise AssertionError(
                f"A captured graph got a dict with the keys {list(dst)} at its capture and with "
                f"{list(src)} at its replay. Give it the same keys in the same order."
            )
        for key in dst:
            copy_to(dst[key], src[key])
    elif isinstance(dst, (list, tuple)) and not isinstance(dst, torch.Size):
        for old, new in zip(dst, src, strict=False):
            copy_to(old, new)
    elif isinstance(dst, torch.Tensor):
        if dst is not src:
            dst.copy_(src, non_blocking=True)
    elif _is_record(dst):
        for field in fields(dst):
            copy_to(getattr(dst, field.name), getattr(src, field.name))


def get_user_input_tensor_list(
    inputs: Any, tlist: tuple[torch.Tensor, ...] = ()
) -> tuple[torch.Tensor, ...]:
    """Appends the tensors in dicts, lists, tuples and dataclasses to `tlist`."""
    if isinstance(inputs, dict):
        return get_user_input_tensor_list(list(inputs.values()), tlist)
    if isinstance(inputs, (list, tuple)):
        for value in inputs:
            tlist = get_user_input_tensor_list(value, tlist)
        return tlist
    if isinstance(inputs, torch.Tensor):
        return (*tlist, inputs)
    if _is_record(inputs):
        return get_user_input_tensor_list([getattr(inputs, f.name) for f in fields(inputs)], tlist)
    return tlist


def extract_tensors(data: Any) -> list[torch.Tensor]:
    """Returns all tensors in dicts, lists, tuples and attributes of objects."""
    if isinstance(data, torch.Tensor):
        return [data]
    if isinstance(data, dict):
        values = list(data.values())
    elif isinstance(data, (list, tuple)):
        values = list(data)
    else:
        values = list(getattr(data, "__dict__", {}).values())
    return [tensor for value in values for tensor in extract_tensors(value)]


def is_any_cpu_float_bfloat_0d_tensors(tensors: tuple[torch.Tensor, ...]) -> bool:
    """Returns whether there is a number among them that stays on the host."""
    return any(
        tensor.device.type == "cpu"
        and tensor.dim() == 0
        and tensor.dtype in (torch.float32, torch.bfloat16)
        for tensor in tensors
    )


def _is_record(obj: Any) -> bool:
    return is_dataclass(obj) and not isinstance(obj, type)
