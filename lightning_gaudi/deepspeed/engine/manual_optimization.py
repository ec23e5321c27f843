"""Manual optimization: the user's own loop says after which backward it steps."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException

_OPTION = "managed_gradient_accumulation"


def stepped_by_user(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings with which DeepSpeed reduces gradients when it is told to step.

    By default it takes each backward for the last before a step. In ZeRO-1 and 2 a second one would
    throw away the gradients of the first.

    Args:
        config: DeepSpeed's settings; not changed.

    Raises:
        MisconfigurationException: The installed DeepSpeed cannot, as before 0.19.4.
    """
    zero = dict(config.get("zero_optimization") or {})
    is_known = hasattr(importlib.import_module("deepspeed.runtime.constants"), _OPTION.upper())
    if not is_known and zero.get("stage") in (1, 2):
        raise MisconfigurationException(
            f"automatic_optimization=False with ZeRO stage {zero['stage']} needs deepspeed 0.19.4 "
            "or later: this one would lose gradients where there are several backward passes to a "
            "step. Upgrade deepspeed, or use stage 3."
        )
    if not is_known:
        return dict(config)
    if zero.get("stage", 0) < 2:
        # DeepSpeed has nothing to overlap then, and refuses the setting, which Lightning writes.
        zero["overlap_comm"] = False
    return {**config, "zero_optimization": zero, _OPTION: False}


def tell_boundary(engine: Any, *, is_last: bool) -> None:
    """Tell the engine whether the next backward is the last before a step, unless it need not know.

    Args:
        engine: DeepSpeed's.
        is_last: Whether it is.
    """
    if getattr(engine, _OPTION, lambda: True)():
        engine.set_gradient_accumulation_boundary(is_last)
