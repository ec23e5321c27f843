"""Selects the card; a process selects one, before it starts the device."""

from __future__ import annotations

import os

import torch

from ..._missing import missing
from . import _utils
from ._lifecycle import device_count

_selected = {"index": -1}


def set_device(device: _utils.Device) -> None:
    """Selects the card that this process drives, by setting `HLS_MODULE_ID`.

    The device's index stays 0: one device a process.

    Args:
        device: The position of the card among the visible modules.

    Raises:
        AssertionError: The card cannot be selected (the vendor's type of error).
    """
    index = _utils._get_device_index(device, optional=True)
    modules = _utils._get_available_modules_from_environ()
    module = _utils._get_module_id_from_environ()
    if module >= 0:
        index = _position(module, modules)
    elif device_count() < 8 and _utils.HABANA_VISIBLE_MODULES_VAR not in os.environ:
        if index != 0:
            raise AssertionError(
                f"set_device({index}) on a server of {device_count()} cards needs "
                f"{_utils.HABANA_VISIBLE_MODULES_VAR}, which is not set. Set it, or pass 0."
            )
        _selected["index"] = index
        return
    _check_position(index, modules)
    os.environ[_utils.HLS_MODULE_ID_VAR] = str(modules[index])
    _selected["index"] = index


def _position(module: int, modules: list[int]) -> int:
    if module not in modules:
        raise AssertionError(
            f"{_utils.HLS_MODULE_ID_VAR}={module} is not among the visible modules {modules}. "
            f"Unset it or add it to {_utils.HABANA_VISIBLE_MODULES_VAR}."
        )
    return modules.index(module)


def _check_position(index: int, modules: list[int]) -> None:
    if not 0 <= index < len(modules):
        raise AssertionError(
            f"set_device({index}): the visible modules are {modules}. "
            f"Pass a position from 0 to {len(modules) - 1}."
        )


class device:  # noqa: N801 (torch's name)
    """Selects a device within a `with` block; a process has one, so this only checks.

    Args:
        device: The device, its index, or None.

    Raises:
        AssertionError: Another device than this process's is asked for.
    """

    def __init__(self, device: _utils.Device) -> None:
        index = _utils._get_device_index(device, optional=True)
        module = _utils._get_module_id_from_environ()
        if index not in (0, -1, module):
            raise AssertionError(
                f"This process drives one HPU, hpu:0, and got index {index}. Pass 'hpu'; to use "
                "more cards start one process for each."
            )
        self.idx = module
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _selected["index"]

    def __exit__(self, *exc_info: object) -> None:
        return None


class device_of(device):  # noqa: N801 (torch's name)
    """Selects the device of a tensor within a `with` block; does nothing for a CPU tensor.

    Args:
        obj: The tensor.
    """

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.get_device() if obj.device.type == "hpu" else -1)


__getattr__ = missing(__name__)
