"""Collectives between HPUs."""

from ..._missing import missing
from . import hccl

__all__ = ["hccl"]
__getattr__ = missing(__name__)
