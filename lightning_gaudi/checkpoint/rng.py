"""The device's random state in checkpoints: a resumed run draws the dropout it would have drawn."""

from __future__ import annotations

from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor

from lightning_gaudi import vendor

KEY = "hpu_rng_state"
"""The checkpoint's key for the state of the device's generator, a CPU tensor of bytes."""


def save_rng_state(checkpoint: dict[str, Any]) -> None:
    """Add the state of the device's generator to `checkpoint`."""
    checkpoint[KEY] = vendor.get_rng_state()


def restore_rng_state(state: Tensor) -> None:
    """Set the device's generator to `state`, or warn that it belongs to another kind of HPU."""
    try:
        vendor.set_rng_state(state)
    except (RuntimeError, ValueError, TypeError) as error:
        rank_zero_warn(
            "The checkpoint holds the random state of another kind of HPU, so that random numbers "
            f"on the device, such as dropout, go on from the current seed instead: {error}"
        )
