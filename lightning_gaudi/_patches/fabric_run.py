"""Patches Fabric's command line for `fabric run --accelerator=hpu script.py`.

Its choices are fixed at import, and its launcher counts processes only for devices that it knows.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from lightning_gaudi._core.mirror import Family

from .apply import replace, require, wrap

_NAME = "fabric-run"


def patch_cli(module: ModuleType, family: Family) -> None:
    """Adds the HPU to the choices, and counts its processes."""
    require(
        _NAME,
        module,
        "_SUPPORTED_ACCELERATORS",
        "_get_num_processes",
        "_get_supported_strategies",
        "_select_auto_accelerator",
    )
    if "hpu" not in module._SUPPORTED_ACCELERATORS:
        accelerators = (*module._SUPPORTED_ACCELERATORS, "hpu")
        replace(_NAME, module, "_SUPPORTED_ACCELERATORS", accelerators)
    _count_cards(module, family)
    # Without click there is no command.
    for option in getattr(getattr(module, "_run", None), "params", []):
        if option.name == "accelerator":
            _extend(option, ["hpu"])
        elif option.name == "strategy":
            _extend(option, module._get_supported_strategies())


def _extend(option: Any, names: list[str]) -> None:
    new = [name for name in names if name not in option.type.choices]
    replace(_NAME, option, "type", type(option.type)([*option.type.choices, *new]))


def _count_cards(module: Any, family: Family) -> None:
    @wrap(_NAME, module, "_get_num_processes")
    def get_num_processes(
        original: Callable[[Any, str], int], accelerator: Any, devices: str
    ) -> int:
        is_open = accelerator in ("auto", None) and not devices.isdecimal()
        if is_open and module._select_auto_accelerator() == "cpu":
            # The script may run on HPUs; a plain number is the same for all.
            ours = family.find("fabric.accelerator").HPUAccelerator
            accelerator = "hpu" if ours.is_available() else accelerator
        if accelerator == "hpu":
            ours = family.find("fabric.accelerator").HPUAccelerator
            every = ours.auto_device_count()
            return len(ours.parse_devices(every if devices == "auto" else devices))
        return original(accelerator, devices)
