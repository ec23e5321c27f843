"""The old address of `habana_frameworks.torch.distributed.hccl`."""

from ...._missing import missing

__getattr__ = missing(__name__)
