"""Checkpoints: CPU tensors, written at once or not at all, with the device's random state.

`io` saves and loads files, which `atomic` writes; `torch_dcp` has folders of shards. Those of
DeepSpeed are in `deepspeed.checkpoint`.
"""

from .io import HPUCheckpointIO
from .rng import restore_rng_state

__all__ = ["HPUCheckpointIO", "restore_rng_state"]
