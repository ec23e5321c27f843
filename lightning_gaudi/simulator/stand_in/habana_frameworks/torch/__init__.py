"""PyTorch on the simulated HPU; importing this package makes `torch.hpu`."""

import torch  # noqa: F401  (before anything of ours: it may activate the simulator)

from .._missing import missing
from . import _binding, utils  # noqa: F401

from . import _ops, hpu, core  # isort: skip  # noqa: F401
from . import distributed, dynamo, hpex, internal
from .distributed import hccl

__all__ = ["core", "distributed", "dynamo", "hccl", "hpex", "hpu", "internal", "utils"]
__getattr__ = missing(__name__)
