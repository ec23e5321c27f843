"""Checks and prepares the offload of optimizer and weights to the host's memory.

An offloaded optimizer also steps on the CPU. DeepSpeed's Adam for the CPU is an operation in C++,
`cpu_adam`, which `build` compiles.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.optim import Optimizer

from .. import library
from ..ops import build

_OPTIMIZER, _PARAMETERS = "offload_optimizer", "offload_param"

# DeepSpeed's older names for the sections, with a boolean value.
_OLD_NAMES = {_OPTIMIZER: "cpu_offload", _PARAMETERS: "cpu_offload_param"}

_ADAMS = ("adam", "adamw")

# DeepSpeed replaces these optimizers of torch by its own for the CPU, which it lacks for the HPU.
_REPLACED = ("adagrad", "lion")

_ON_CARD = (
    "habana_frameworks.",
    "deepspeed.ops.adam.fused",
    "deepspeed.ops.lamb.fused",
    "deepspeed.ops.lion.fused",
)
"""Modules of optimizers whose step is an operation of the card."""

_ALTERNATIVES = (
    "return deepspeed.ops.adam.DeepSpeedCPUAdam(...) instead, or name an optimizer in DeepSpeed's "
    "settings ({'optimizer': {'type': 'AdamW', 'params': {'lr': ...}}})"
)


def check_offload(config: Mapping[str, Any]) -> None:
    """Refuses an offload that DeepSpeed would ignore, or cannot do on an HPU.

    Args:
        config: DeepSpeed's settings.

    Raises:
        MisconfigurationException: It is on an NVMe disk, or ZeRO's stage does not offload it.
        ValueError: The settings name an optimizer that cannot step on the CPU.
    """
    zero = config.get("zero_optimization") or {}
    stage = zero.get("stage", 0)
    for name, lowest, what in ((_OPTIMIZER, 1, "the optimizer"), (_PARAMETERS, 3, "parameters")):
        device = _device(config, name)
        if device == "nvme":
            _check_nvme(name)
        if device is not None and stage < lowest:
            raise MisconfigurationException(
                f"{name}={{'device': {device!r}}} with ZeRO stage {stage}: DeepSpeed offloads "
                f"{what} from stage {lowest} on. Pass stage={lowest}, or leave {name} out."
            )
    kind = _named(config)
    if _device(config, _OPTIMIZER) and kind is not None and not _is_for_cpu(kind):
        raise ValueError(
            f"optimizer.type={kind!r} in DeepSpeed's settings cannot step on the CPU, where "
            f"{_OPTIMIZER} has it. Set it to 'Adam' or 'AdamW', or leave {_OPTIMIZER} out."
        )


def check_stepping(config: Mapping[str, Any], optimizer: Optimizer | None) -> None:
    """Refuses an optimizer that cannot, or should not, step on the CPU.

    Args:
        config: DeepSpeed's settings.
        optimizer: The user's; None if `config` names one.

    Raises:
        MisconfigurationException: It is another than DeepSpeed's for the CPU.
    """
    if optimizer is None or _device(config, _OPTIMIZER) is None:
        return
    kind = type(optimizer)
    typed = f"{kind.__module__}.{kind.__qualname__}"
    if kind.__module__.startswith(_ON_CARD):
        raise MisconfigurationException(
            f"{typed} steps on the card, but {_OPTIMIZER} has the optimizer on the CPU. Leave "
            f"{_OPTIMIZER} out, or {_ALTERNATIVES}."
        )
    is_forced = config.get("zero_force_ds_cpu_optimizer", True)
    is_deepspeeds = any(each.__name__ == "DeepSpeedCPUAdam" for each in kind.__mro__)
    if is_forced and not is_deepspeeds:
        raise MisconfigurationException(
            f"{typed} is not made to step on the CPU, where {_OPTIMIZER} has it: "
            f"{_ALTERNATIVES}. To have it step there all the same, set "
            "'zero_force_ds_cpu_optimizer' to false in them."
        )


def prepare(config: Mapping[str, Any]) -> None:
    """Builds the operation that the optimizer needs on the CPU.

    Args:
        config: DeepSpeed's settings.

    Raises:
        OpBuildError: It cannot be built.
    """
    # Before the ranks are connected, so that none waits in a collective for a build.
    if _needs_cpu_adam(config):
        library.load()
        builders = importlib.import_module("deepspeed.ops.op_builder")
        build.provide(builders.CPUAdamBuilder())


def _needs_cpu_adam(config: Mapping[str, Any]) -> bool:
    if _device(config, _OPTIMIZER) is None:
        return False
    kind = _named(config)
    if kind is None:
        return bool(config.get("zero_force_ds_cpu_optimizer", True))
    params = config["optimizer"].get("params") or {}
    return kind.lower() in _ADAMS and not params.get("torch_adam")


def _device(config: Mapping[str, Any], name: str) -> str | None:
    """Returns the device that a section offloads to; None if it does not offload."""
    zero = config.get("zero_optimization") or {}
    if zero.get(_OLD_NAMES[name]):
        return "cpu"
    # The value may be DeepSpeed's enumeration, which prints as its own name.
    device = (zero.get(name) or {}).get("device")
    device = getattr(device, "value", device)
    return None if device in (None, "none") else str(device)


def _named(config: Mapping[str, Any]) -> str | None:
    """Returns the optimizer that the settings name."""
    return (config.get("optimizer") or {}).get("type")


def _is_for_cpu(kind: str) -> bool:
    name = kind.lower()
    return name in _ADAMS or (name not in _REPLACED and hasattr(torch.optim, kind))


def _check_nvme(name: str) -> None:
    library.load()
    accelerator = importlib.import_module("deepspeed.accelerator").get_accelerator()
    builder = accelerator.get_op_builder("AsyncIOBuilder")
    if builder is None or builder.__name__ == "NotImplementedBuilder":
        raise MisconfigurationException(
            f"{name}={{'device': 'nvme'}}, which 'deepspeed_stage_3_offload_nvme' has, needs "
            "DeepSpeed's async_io, which it does not have for the HPU. Offload to the CPU: pass "
            "'deepspeed_stage_3_offload', or the device 'cpu'."
        )
