"""Checkpoints: CPU tensors, written at once or not at all, with the device's random state."""

from .io import HPUCheckpointIO
from .rng import restore_rng_state

__all__ = ["HPUCheckpointIO", "restore_rng_state"]
