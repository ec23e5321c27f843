"""Device indices and the environment variables that name a card."""

from __future__ import annotations

import os

import torch

from ._lifecycle import current_device, device_count

HABANA_VISIBLE_MODULES_VAR = "HABANA_VISIBLE_MODULES"
HLS_MODULE_ID_VAR = "HLS_MODULE_ID"

Device = torch.device | str | int | None


def _get_device_index(device: Device, optional: bool = False, allow_cpu: bool = False) -> int:
    """The index that `device` means.

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
    """The index that `device` means, within the cards of the server.

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
    """The module (card slot) that this process was given, or -1."""
    return int(os.environ.get(HLS_MODULE_ID_VAR) or -1)


def _get_available_modules_from_environ() -> list[int]:
    """The modules that this job may use, 0 to 7 by default."""
    value = os.environ.get(HABANA_VISIBLE_MODULES_VAR) or "0,1,2,3,4,5,6,7"
    return [int(module) for module in value.split(",")]
