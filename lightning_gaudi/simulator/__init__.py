"""A simulated HPU: Gaudi code runs unmodified on a machine that has only a CPU.

It is opt-in, never a fallback: it starts where `LIGHTNING_GAUDI_SIMULATE` asks for it, and a
failure to start raises. Importing this package does not import torch. See the README.md beside.
"""

from lightning_gaudi.simulator.activation import activate, is_active, set_memory_limit
from lightning_gaudi.simulator.settings import (
    CARDS,
    Card,
    Settings,
    SimulatorError,
    is_requested,
    read_card,
    read_settings,
)
from lightning_gaudi.simulator.statistics import (
    CollectiveStats,
    collective_stats,
    host_syncs,
    launches,
    reset_statistics,
)

__all__ = [
    "CARDS",
    "Card",
    "CollectiveStats",
    "Settings",
    "SimulatorError",
    "activate",
    "collective_stats",
    "host_syncs",
    "is_active",
    "is_requested",
    "launches",
    "read_card",
    "read_settings",
    "reset_statistics",
    "set_memory_limit",
]
