"""The switches of the vendor's bridge that Gaudi code asks for."""

from __future__ import annotations

from ..._missing import missing


def get_pt_hpu_gpu_migration() -> bool:
    """Whether CUDA calls are translated to HPU calls: never on the simulated HPU."""
    return False


__getattr__ = missing(__name__)
