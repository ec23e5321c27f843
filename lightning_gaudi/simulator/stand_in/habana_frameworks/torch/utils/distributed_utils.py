"""Offers `initialize_distributed_hpu` under its old address."""

from __future__ import annotations

import warnings

from ..._missing import missing
from ..distributed import hccl


def initialize_distributed_hpu() -> tuple[int, int, int]:
    """Calls `habana_frameworks.torch.distributed.hccl.initialize_distributed_hpu`; deprecated."""
    warnings.warn(
        "initialize_distributed_hpu moved to habana_frameworks.torch.distributed.hccl; "
        "import it from there.",
        FutureWarning,
        stacklevel=2,
    )
    return hccl.initialize_distributed_hpu()


__getattr__ = missing(__name__)
