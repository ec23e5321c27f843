"""Reads what the simulated card has counted: launches, collectives and waits of the host.

All counts are of this process, since its start or `reset_statistics()`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TypedDict

from lightning_gaudi.simulator import build
from lightning_gaudi.simulator.activation import is_active
from lightning_gaudi.simulator.settings import SIMULATE, SimulatorError


class CollectiveStats(TypedDict):
    """Collectives of one kind that this rank took part in."""

    calls: int
    """The number of calls; a coalesced call of several tensors is one."""
    bytes: int
    """The bytes that this rank gave to them; for "recv" those that it received."""
    sent: int
    """The bytes that it sends over its links for them, in a ring, which makes kinds comparable."""


def collective_stats() -> dict[str, CollectiveStats]:
    """Counts the collectives of HCCL by kind.

    Kinds are torch's functions: "all_reduce", "broadcast", "reduce", "all_gather", "gather",
    "scatter", "reduce_scatter", "all_to_all", "send", "recv" and "barrier". Each covers its forms
    (all_gather_into_tensor, coalesced, functional); a kind that was never called is missing.

    Raises:
        SimulatorError: The simulator is not active.
    """
    stats: dict[str, CollectiveStats] = device().collectives()
    return stats


def host_syncs() -> dict[str, int]:
    """Counts how often the host waited for the device, by reason: an operator or "synchronize".

    Raises:
        SimulatorError: The simulator is not active.
    """
    counts: dict[str, int] = device().host_syncs()
    return counts


def launches() -> int:
    """Counts how often the card was told to run something.

    In eager mode each operator that computes is one; views and new memory are none, neither are
    copies between host and card, nor collectives. `F.scaled_dot_product_attention` is as many as
    its composition has, as on a card; the vendor's fused operators and torch's `_foreach_` ones
    are one each. In lazy mode a graph is one, and with `torch.compile` a call of a compiled graph.

    Raises:
        SimulatorError: The simulator is not active.
    """
    count: int = device().launches()
    return count


def reset_statistics() -> None:
    """Sets all counts of this module to zero.

    Raises:
        SimulatorError: The simulator is not active.
    """
    device().reset_counters()


def device() -> ModuleType:
    """Returns the compiled simulator.

    Raises:
        SimulatorError: The simulator is not active.
    """
    if not is_active():
        raise SimulatorError(
            f"The simulated HPU is not active, so it has counted nothing. Set {SIMULATE} before "
            "torch is imported, or start the program with `lightning-gaudi simulate -- command`."
        )
    return sys.modules[build.MODULE]
