"""Checkpoints: CPU tensors, written at once or not at all.

`io` saves and loads files, which `atomic` writes; `torch_dcp` has folders of shards. Those of
DeepSpeed are in `deepspeed.checkpoint`.
"""

from .io import HPUCheckpointIO

__all__ = ["HPUCheckpointIO"]
