"""Names the type of process groups, and the ways to split a linear layer."""

from __future__ import annotations

import torch

from ....._missing import missing

dist_group_type = torch.distributed.ProcessGroup
"""The type of a process group."""

GemmParallelModes = ("row", "column", None)
"""How a linear layer may be split over cards."""

__getattr__ = missing(__name__)
