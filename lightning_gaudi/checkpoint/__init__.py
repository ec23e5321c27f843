"""Checkpoints: CPU tensors, written at once or not at all.

`io` is what Lightning plugs in, `files` saves and loads a whole file, which `atomic` writes;
`torch_dcp` has folders of shards. Those of DeepSpeed are in `deepspeed.checkpoint`.
"""

from .io import HPUCheckpointIO

__all__ = ["HPUCheckpointIO"]
