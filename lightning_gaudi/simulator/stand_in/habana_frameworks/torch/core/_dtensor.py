"""Has DTensor keep the random state of this process's device, whatever its rank.

torch takes the rank for the index of the device, and a process's only HPU has index 0. This module
is imported right after the one that it changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import _random


def _resolving_hpu(
    original: Callable[[DeviceMesh], torch.device],
) -> Callable[[DeviceMesh], torch.device]:
    @functools.wraps(original)
    def resolve_device(device_mesh: DeviceMesh) -> torch.device:
        if device_mesh.device_type == "hpu":
            return torch.device("hpu", 0)
        return original(device_mesh)

    return resolve_device


if hasattr(_random, "_resolve_device"):  # not in every torch
    _random._resolve_device = _resolving_hpu(_random._resolve_device)
