"""Changes in torch what importing the vendor's package changes (release 1.24.0).

In all modes seeding covers the device, process groups take the vendor's arguments, and tensors and
modules get `.hpu()`. In lazy mode saving and loading go through the CPU, and modules get names and
hooks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..._missing import missing
from .. import hpu
from ..hpu import _utils
from ..utils.internal import is_lazy
from . import _distributed, _module_names, _serialization
from ._module_names import (
    _post_fwd_hook as _post_fwd_hook,  # a pickled module names them here
    _pre_fwd_hook as _pre_fwd_hook,
)

LAZY_DEFAULT_PROTOCOL = 4
"""The pickle protocol of the vendor's files in lazy mode; ours keep torch's."""

_done = {"is_done": False}


class HpuMarker:
    """The class by which the vendor's pickles mark tensors of the HPU; none are written here."""


def overwrite_torch_functions() -> None:
    """Replaces torch's functions, when the package is imported; a second call changes nothing."""
    if _done["is_done"]:
        return
    _done["is_done"] = True
    torch.manual_seed = _seeding_hpu(torch.manual_seed)
    torch.seed = _seeding_hpu_too(torch.seed)
    torch.random.fork_rng = _forking_hpu(torch.random.fork_rng)
    _add_hpu_methods()
    _distributed.overwrite()
    if is_lazy():
        _serialization.overwrite()
        _module_names.overwrite()


def _seeding_hpu(original: Callable[[int], torch.Generator]) -> Callable[[int], torch.Generator]:
    @functools.wraps(original)
    def manual_seed(seed: int) -> torch.Generator:
        hpu.manual_seed(seed)
        return original(seed)

    return manual_seed


def _seeding_hpu_too(original: Callable[[], int]) -> Callable[[], int]:
    @functools.wraps(original)
    def seed() -> int:
        value = original()
        hpu.manual_seed_all(value)
        return value

    return seed


def _forking_hpu(
    original: Callable[..., AbstractContextManager[None]],
) -> Callable[..., AbstractContextManager[None]]:
    @functools.wraps(original)
    def fork_rng(
        devices: Iterable[Any] | None = None,
        enabled: bool = True,
        _caller: str = "fork_rng",
        _devices_kw: str = "devices",
        device_type: str | None = None,
    ) -> AbstractContextManager[None]:
        device_type = device_type or "hpu"
        # torch would fork all cards of the server; a process has one.
        if devices is None and device_type == "hpu":
            devices = [0]
        return original(devices, enabled, _caller, _devices_kw, device_type)

    return fork_rng


def _tensor_hpu(
    self: torch.Tensor,
    device: torch.device | str | int | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> torch.Tensor:
    """Returns a copy of the tensor on the HPU, or the tensor itself if it is there."""
    index = _utils._get_device_index(device, optional=True)
    target = torch.device("hpu", index)
    return self.to(target, non_blocking=non_blocking, memory_format=memory_format)


def _module_hpu(
    self: torch.nn.Module, device: torch.device | str | int | None = None
) -> torch.nn.Module:
    """Moves the module's parameters and buffers to the HPU."""
    return self._apply(lambda tensor: _tensor_hpu(tensor, device))


def _add_hpu_methods() -> None:
    # torch has such methods for its other devices, but not for this one.
    if not hasattr(torch.Tensor, "hpu"):
        torch.Tensor.hpu = _tensor_hpu
    if not hasattr(torch.Tensor, "is_hpu"):
        torch.Tensor.is_hpu = property(lambda self: self.device.type == "hpu")
    if not hasattr(torch.nn.Module, "hpu"):
        torch.nn.Module.hpu = _module_hpu


__getattr__ = missing(__name__)
