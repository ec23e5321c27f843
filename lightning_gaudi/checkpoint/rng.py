"""The device's random state in checkpoints: a resumed run draws the dropout it would have drawn."""

from __future__ import annotations

from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor

from lightning_gaudi._core import vendor

KEY = "hpu_rng_state"
"""The checkpoint's key for the state of the device's generator, a CPU tensor of bytes.

A list of them by rank where several ranks trained.
"""


def restore_rng_state(saved: Tensor | list[Tensor], *, rank: int, world_size: int) -> None:
    """Sets the device's generator to what was saved by this rank, or warn why it goes on as it is.

    Args:
        saved: What a checkpoint has under `KEY`.
        rank: This process among all.
        world_size: The number of processes now.
    """
    states = saved if isinstance(saved, list) else [saved]
    if len(states) != world_size:
        _warn(f"was saved by {len(states)} ranks, and this run has {world_size}")
        return
    try:
        vendor.set_rng_state(states[rank])
    except (RuntimeError, ValueError, TypeError) as error:
        _warn(f"is of another kind of HPU ({error})")


def _warn(reason: str) -> None:
    rank_zero_warn(
        f"The checkpoint's random state {reason}: random numbers on the device, such as "
        "dropout, go on from the current seed instead."
    )
