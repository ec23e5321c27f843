"""Holds whether modules compute in fp8, and by which recipe."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, ClassVar

import torch

from ....._missing import missing
from ...._card import card
from ...._ops.fp8 import require_fp8
from .constants import dist_group_type
from .recipe import DelayedScaling, Format

_State = tuple[bool, DelayedScaling | None, "dist_group_type | None", bool]
_CHECKPOINTED = (
    "FP8_AUTOCAST_COUNTER",
    "FP8_CURRENT_CONTEXT_ID",
    "FP8_AUTOCAST_DEPTH",
    "FP8_MANUAL_MEASUREMENT",
)


class MetaTensorType(Enum):
    """The tables of a module's scales."""

    FORWARD = 0
    """The table of the forward pass."""
    HYBRID = 1
    """The table of the forward pass's tensors as the backward pass sees them: in e5m2 (HYBRID)."""
    BACKWARD = 2
    """The table of the backward pass."""


_SUFFIXES = {
    MetaTensorType.FORWARD: "fwd",
    MetaTensorType.HYBRID: "hybrid",
    MetaTensorType.BACKWARD: "bwd",
}


def check_fp8_support() -> tuple[bool, str]:
    """Returns whether the card has fp8, and if not the reason."""
    if not card().has_float8:
        return False, f"A {card().title} has no fp8: it needs a Gaudi 2 or later."
    return True, ""


def get_default_fp8_recipe() -> DelayedScaling:
    """Returns the recipe of `fp8_autocast` without one."""
    return DelayedScaling()


def get_fp8_te_dtype(fp8_recipe: DelayedScaling, fprop_tensor: bool = True) -> torch.dtype:
    """Returns the fp8 dtype of the forward pass (`fprop_tensor`) or of the backward pass."""
    is_e4m3 = fp8_recipe.fp8_format is Format.E4M3
    if is_e4m3 or (fp8_recipe.fp8_format is Format.HYBRID and fprop_tensor):
        return torch.float8_e4m3fn
    return torch.float8_e5m2


def get_fp8_te_sr(fp8_recipe: DelayedScaling, fprop_tensor: bool = True) -> bool:
    """Returns whether tensors are rounded at random: gradients under HYBRID.

    The environment's PT_TE_FORCE_SR_BWD decides for gradients, if it is set.
    """
    if fprop_tensor:
        return False
    forced = os.environ.get("PT_TE_FORCE_SR_BWD")
    if forced is not None:
        return forced.lower() in ("true", "1")
    return fp8_recipe.fp8_format is Format.HYBRID


class FP8GlobalStateManager:
    """The state that all modules of the process share, as attributes of the class."""

    FP8_ENABLED: ClassVar[bool] = False
    FP8_RECIPE: ClassVar[DelayedScaling | None] = None
    FP8_DISTRIBUTED_GROUP: ClassVar[dist_group_type | None] = None
    IS_FIRST_FP8_MODULE: ClassVar[bool] = False
    FP8_AUTOCAST_COUNTER: ClassVar[int] = 0
    FP8_CURRENT_CONTEXT_ID: ClassVar[int] = 0
    FP8_AUTOCAST_DEPTH: ClassVar[int] = 0
    FP8_MANUAL_MEASUREMENT: ClassVar[bool | None] = None

    @classmethod
    def is_fp8_available(cls) -> tuple[bool, str]:
        """Returns whether the card has fp8, and if not the reason."""
        return check_fp8_support()

    @classmethod
    def is_fp8_enabled(cls) -> bool:
        """Returns whether modules compute in fp8."""
        return cls.FP8_ENABLED

    @classmethod
    def get_fp8_recipe(cls) -> DelayedScaling | None:
        """Returns the recipe of the `fp8_autocast` that is entered, or None."""
        return cls.FP8_RECIPE

    @classmethod
    def get_fp8_group(cls) -> dist_group_type | None:
        """Returns the group whose ranks share their largest values; None for all ranks."""
        return cls.FP8_DISTRIBUTED_GROUP

    @classmethod
    def is_first_fp8_module(cls) -> bool:
        """Returns whether this is the first call in an `fp8_autocast`."""
        first, cls.IS_FIRST_FP8_MODULE = cls.IS_FIRST_FP8_MODULE, False
        return first

    @classmethod
    def set_measurement_mode(cls, manual: bool, manual_value: bool = True) -> None:
        """Measures always or never (`manual_value`), or as the recipe's interval says."""
        cls.FP8_MANUAL_MEASUREMENT = manual_value if manual else None

    @classmethod
    def get_manual_measurement_mode(cls) -> bool | None:
        """Returns what `set_measurement_mode` set, or None."""
        return cls.FP8_MANUAL_MEASUREMENT

    @classmethod
    def get_fp8_autocast_state(cls) -> _State:
        """Returns what `fp8_autocast` sets, to restore it."""
        return (
            cls.FP8_ENABLED,
            cls.FP8_RECIPE,
            cls.FP8_DISTRIBUTED_GROUP,
            cls.IS_FIRST_FP8_MODULE,
        )

    @classmethod
    def set_fp8_autocast_state(cls, fp8_state: _State) -> None:
        """Restores what `get_fp8_autocast_state` gave."""
        (
            cls.FP8_ENABLED,
            cls.FP8_RECIPE,
            cls.FP8_DISTRIBUTED_GROUP,
            cls.IS_FIRST_FP8_MODULE,
        ) = fp8_state

    @classmethod
    def fp8_autocast_enter(
        cls,
        enabled: bool = False,
        force_measurement: bool | None = None,
        fp8_recipe: DelayedScaling | None = None,
        fp8_group: dist_group_type | None = None,
    ) -> None:
        """Begins what `fp8_autocast` does.

        Raises:
            RuntimeError: The card has no fp8.
        """
        if enabled:
            require_fp8("fp8_autocast")
        cls.FP8_ENABLED = enabled
        cls.FP8_RECIPE = get_default_fp8_recipe() if fp8_recipe is None else fp8_recipe
        cls.FP8_DISTRIBUTED_GROUP = fp8_group
        if cls.FP8_AUTOCAST_DEPTH == 0:
            cls.IS_FIRST_FP8_MODULE = True
            cls.FP8_AUTOCAST_COUNTER += 1
            cls.FP8_MANUAL_MEASUREMENT = force_measurement
        cls.FP8_AUTOCAST_DEPTH += 1

    @classmethod
    def fp8_autocast_exit(cls) -> None:
        """Ends what `fp8_autocast_enter` began, but for the state that was before."""
        cls.FP8_AUTOCAST_DEPTH -= 1

    @classmethod
    def copy_forward_fp8_meta_tensors_for_recompute(cls, fp8_meta: dict[str, Any]) -> None:
        """Keeps copies of a module's forward tables for the pass that computes it again."""
        from . import _tables

        kept = fp8_meta.setdefault("kept_for_recompute", deque())
        kept.append(_tables.snapshot(fp8_meta, _tables.FORWARD))

    @classmethod
    def get_old_fp8_meta_tensors_for_recompute(cls, fp8_meta: dict[str, Any]) -> None:
        """Puts the oldest of the copies in the tables' place.

        Raises:
            IndexError: There is none.
        """
        from . import _tables

        old = fp8_meta.get("kept_for_recompute", deque()).popleft()
        fp8_meta["newest"] = _tables.snapshot(fp8_meta, _tables.FORWARD)
        _tables.restore(fp8_meta, _tables.FORWARD, old)

    @classmethod
    def restore_fp8_meta_tensors(cls, fp8_meta: dict[str, Any]) -> None:
        """Puts back the tables that `get_old_fp8_meta_tensors_for_recompute` has replaced."""
        from . import _tables

        _tables.restore(fp8_meta, _tables.FORWARD, fp8_meta.pop("newest"))

    @classmethod
    def get_global_fp8_state_checkpoint(cls) -> dict[str, Any]:
        """Returns the counters, for a checkpoint."""
        return {name: getattr(cls, name) for name in _CHECKPOINTED}

    @classmethod
    def set_global_fp8_state_checkpoint(cls, state: dict[str, Any]) -> None:
        """Restores the counters."""
        for name in _CHECKPOINTED:
            if name in state:
                setattr(cls, name, state[name])

    @classmethod
    def get_fp8_context_id(cls) -> int:
        """Returns the step in which the first module is."""
        return cls.FP8_CURRENT_CONTEXT_ID

    @classmethod
    def set_fp8_context_id(cls, ctx_id: int) -> None:
        """Notes the step in which the first module is."""
        cls.FP8_CURRENT_CONTEXT_ID = ctx_id

    @classmethod
    def new_fp8_context_id(cls) -> int:
        """Returns how many outermost `fp8_autocast` there were."""
        return cls.FP8_AUTOCAST_COUNTER

    @classmethod
    def set_fp8_autocast_counter(cls, value: int = 0) -> None:
        """Sets how many outermost `fp8_autocast` there were."""
        cls.FP8_AUTOCAST_COUNTER = value

    @classmethod
    def reset_global_state(cls) -> None:
        """Sets the count of outermost `fp8_autocast` to zero."""
        cls.set_fp8_autocast_counter(0)

    @staticmethod
    def get_key_suffix(t: MetaTensorType) -> str:
        """Returns the suffix of a table's key: fwd, hybrid or bwd."""
        return _SUFFIXES[t]

    @staticmethod
    def get_meta_tensor_key(t: MetaTensorType) -> str:
        """Returns the table's key in a module's `fp8_meta`."""
        return f"scaling_{_SUFFIXES[t]}"

    @classmethod
    def get_meta_tensor_key_bool(cls, forward: bool = True) -> str:
        """Returns the key of the forward or the backward pass's table."""
        return cls.get_meta_tensor_key(
            MetaTensorType.FORWARD if forward else MetaTensorType.BACKWARD
        )

    @staticmethod
    def get_fp8_max_key(t: MetaTensorType) -> str:
        """Returns the key in `fp8_meta` of the number that a table's scales aim at."""
        return "fp8_max_fwd" if t is MetaTensorType.FORWARD else "fp8_max_bwd"

    @staticmethod
    def is_forward(t: MetaTensorType) -> bool:
        """Returns whether a table is of the forward pass's tensors."""
        return t is not MetaTensorType.BACKWARD

    @classmethod
    def is_hybrid_mode(cls, fp8_meta: dict[str, Any]) -> bool:
        """Returns whether a module keeps its tensors in both formats."""
        return cls.get_meta_tensor_key(MetaTensorType.HYBRID) in fp8_meta

    @staticmethod
    def reduce_tensor_across_group_op_max(
        tensor: torch.Tensor, group: dist_group_type | None
    ) -> None:
        """Takes the maximum over the ranks of a group, in place, if there are several."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MAX, group)


@contextmanager
def fp8_autocast(
    enabled: bool = False,
    force_measurement: bool | None = None,
    fp8_recipe: DelayedScaling | None = None,
    fp8_group: dist_group_type | None = None,
) -> Iterator[None]:
    """Lets the modules of this package compute in fp8; outside of it they do not.

    Args:
        enabled: Whether in fp8.
        force_measurement: Whether to measure in every step or in none; by default as the recipe's
            interval says.
        fp8_recipe: How scales are chosen.
        fp8_group: Whose ranks share their largest values; by default all ranks.

    Raises:
        RuntimeError: The card has no fp8.
    """
    before = FP8GlobalStateManager.get_fp8_autocast_state()
    FP8GlobalStateManager.fp8_autocast_enter(enabled, force_measurement, fp8_recipe, fp8_group)
    try:
        yield
    finally:
        FP8GlobalStateManager.set_fp8_autocast_state(before)
        FP8GlobalStateManager.fp8_autocast_exit()


def set_measurement_mode(manual: bool, manual_value: bool = True) -> None:
    """See `FP8GlobalStateManager.set_measurement_mode`."""
    FP8GlobalStateManager.set_measurement_mode(manual, manual_value)


__getattr__ = missing(__name__)
