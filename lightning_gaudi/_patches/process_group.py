"""Patches the start and the end of `torch.distributed` beside the vendor's package."""

from __future__ import annotations

import _sitebuiltins
import functools
import inspect
import sys
from types import ModuleType
from typing import Any

from lightning_gaudi._core import mirror
from lightning_gaudi._core.processes import exit_status

from .apply import replace


def patch_process_group(module: ModuleType, family: mirror.Family) -> None:
    """Makes process groups accept `device_id=None`, and lets the ranks end together.

    Args:
        module: The vendor's, which has replaced `init_process_group`.
        family: Not used.
    """
    import torch.distributed as dist

    if hasattr(dist, "init_process_group"):
        destroy = dist.destroy_process_group
        replace("process-group", dist, "init_process_group", _init(dist, destroy))
        replace("process-group", dist, "destroy_process_group", _destroy(dist, destroy))
        watch_exits()


def watch_exits() -> None:
    """Notes the status with which `sys.exit`, `exit` and `quit` end the program."""
    quitter = _sitebuiltins.Quitter
    replace("process-group", sys, "exit", exit_status.noting(sys.exit))
    replace("process-group", quitter, "__call__", exit_status.noting(vars(quitter)["__call__"]))


def _init(dist: ModuleType, destroy: Any) -> Any:
    """Returns an `init_process_group` that accepts `device_id=None` and prepares the end.

    The vendor's wrapper may lack that argument. None is accepted again, and a device is refused as
    before.

    Source: Intel Gaudi PyTorch bridge, `core/torch_overwrites.py` of 1.19, which has no such
    argument, and of 2025 and 1.24.0, which have.
    """
    original = dist.init_process_group
    takes_device = "device_id" in inspect.signature(original, follow_wrapped=False).parameters

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        from lightning_gaudi._core.processes import farewell

        if not takes_device and kwargs.get("device_id", 0) is None:
            del kwargs["device_id"]
        result = original(*args, **kwargs)
        farewell.prepare(destroy)
        return result

    return init_process_group


def _destroy(dist: ModuleType, original: Any) -> Any:
    """Returns a `destroy_process_group` after which the ranks still hear of one that fails."""

    @functools.wraps(original)
    def destroy_process_group(group: Any = None) -> None:
        if group is None or group is dist.group.WORLD:
            from lightning_gaudi._core.processes import farewell

            farewell.destroy_all(original)
        else:
            original(group)

    return destroy_process_group
