"""`fabric run --accelerator=hpu script.py`: what is patched in Fabric's command line.

Its choices are fixed when it is imported, and its launcher counts the processes for the devices
that it knows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .. import seam
from .accelerator import HPUAccelerator

_NAMES = (
    "_SUPPORTED_ACCELERATORS",
    "_get_num_processes",
    "_get_supported_strategies",
    "_select_auto_accelerator",
)


def patch_cli(module: ModuleType) -> None:
    """Add the HPU to the choices, and count its processes; doing it again is harmless."""
    if hasattr(module, seam.MARK):
        return
    missing = [name for name in _NAMES if not hasattr(module, name)]
    if missing:
        seam.warn_of_missing(module, missing)
        return
    module._SUPPORTED_ACCELERATORS = (*module._SUPPORTED_ACCELERATORS, "hpu")  # type: ignore[attr-defined]
    module._get_num_processes = _wrap(  # type: ignore[attr-defined]
        module._get_num_processes, module._select_auto_accelerator
    )
    # Without click there is no command.
    for option in getattr(getattr(module, "_run", None), "params", []):
        if option.name == "accelerator":
            _extend(option, ["hpu"])
        elif option.name == "strategy":
            _extend(option, module._get_supported_strategies())
    setattr(module, seam.MARK, True)


def _extend(option: Any, names: list[str]) -> None:
    new = [name for name in names if name not in option.type.choices]
    option.type = type(option.type)([*option.type.choices, *new])


def _wrap(original: Callable[[Any, str], int], choose_auto: Callable[[], str]) -> Any:
    @functools.wraps(original)
    def get_num_processes(accelerator: Any, devices: str) -> int:
        if accelerator in ("auto", None) and not devices.isdecimal() and choose_auto() == "cpu":
            # The script may run on HPUs; a plain number is the same for all.
            accelerator = "hpu" if HPUAccelerator.is_available() else accelerator
        if accelerator == "hpu":
            every = HPUAccelerator.auto_device_count()
            return len(HPUAccelerator.parse_devices(every if devices == "auto" else devices))
        return original(accelerator, devices)

    return get_num_processes
