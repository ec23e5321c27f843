"""Reads device indices, and the environment variables that name a card."""

from __future__ import annotations

import os

import torch

from lightning_gaudi.untrusted import read_integer

from ..._release import release
from .._card import card
from ._lifecycle import current_device, device_count

HABANA_VISIBLE_MODULES_VAR = "HABANA_VISIBLE_MODULES"
HLS_MODULE_ID_VAR = "HLS_MODULE_ID"

_MAX_MODULES = 8

Device = torch.device | str | int | None


def _get_device_index(device: Device, optional: bool = False, allow_cpu: bool = False) -> int:
    """Returns the index that `device` means.

    Args:
        device: A device, its name, an index, or None for the current device.
        optional: Whether "hpu" without an index, and None, mean the current device.
        allow_cpu: Whether a CPU device is allowed; it gives -1.

    Raises:
        ValueError: The device is of another type, or has no index and needs one.
    """
    if isinstance(device, int):
        return device
    if isinstance(device, str):
        device = torch.device(device)
    if device is not None:
        if allow_cpu and device.type == "cpu":
            return -1
        if device.type != "hpu":
            raise ValueError(f"Expected an hpu device, got {str(device)!r}. Pass 'hpu'.")
        if device.index is not None:
            return device.index
    if not optional:
        raise ValueError(f"The device needs an index, got {device!r}. Pass 'hpu:0' or 0.")
    return current_device()


def checked_index(device: Device) -> int:
    """Returns the index that `device` means, within the cards of the server.

    Raises:
        AssertionError: No card has that index (the vendor's type of error).
    """
    index = _get_device_index(device, optional=True)
    if not 0 <= index < device_count():
        raise AssertionError(
            f"There is no HPU with index {index}: this server has {device_count()}, counted from "
            "0. Pass 'hpu' for the one that this process drives."
        )
    return index


def _get_module_id_from_environ() -> int:
    """Returns the module (card slot) of this process, or -1; since 1.24 it is -1 for module 0."""
    module = read_integer(HLS_MODULE_ID_VAR, -1, at_least=-1)
    return -1 if module == 0 and release().number >= 124 else module


def _get_available_modules_from_environ() -> list[int]:
    """Returns the modules that this job may use, 0 to 7 by default.

    Raises:
        ValueError: The variable is no list of integers.
        AssertionError: It has another number of modules than a server may lend.
    """
    value = os.environ.get(HABANA_VISIBLE_MODULES_VAR, "0,1,2,3,4,5,6,7")
    try:
        modules = [int(module) for module in value.split(",")]
    except ValueError:
        raise ValueError(
            f"{HABANA_VISIBLE_MODULES_VAR}={value!r} is no list of modules. Write their numbers "
            "with commas between them, such as 0,1,2,3, or unset it for all."
        ) from None
    # Source: hpu/_utils.py of 1.24.0; in a rack of Gaudi 3 servers modules come in pairs.
    is_paired = release().number >= 124 and card().takes_modules_in_pairs
    if len(modules) > _MAX_MODULES or (is_paired and len(modules) > 1 and len(modules) % 2):
        allowed = "1, 2, 4, 6 or 8 on a Gaudi 3" if is_paired else f"1 to {_MAX_MODULES}"
        raise AssertionError(
            f"{HABANA_VISIBLE_MODULES_VAR}={value} names {len(modules)} modules; allowed are "
            f"{allowed}. Name as many, or unset it for all."
        )
    return modules
