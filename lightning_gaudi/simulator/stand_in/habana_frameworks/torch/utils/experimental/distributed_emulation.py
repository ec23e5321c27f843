"""Refuses to run one rank of many without the others, as the vendor's package can.

There collectives then do nothing, so results mean nothing and only speed is measured. Here there is
no speed to measure; start a process for each rank instead.
"""

from __future__ import annotations

import os

from ...._missing import missing, not_simulated

_VARIABLE = "PT_HPU_EMULATE_DISTRIBUTED"


def is_distributed_emulation_enabled() -> bool:
    """Returns whether the environment asks for the emulation."""
    return os.environ.get(_VARIABLE, "").lower() in ("true", "1")


def distributed_emulation_apply_if_enabled() -> None:
    """Refuses the emulation, if the environment asks for it.

    Raises:
        NotSimulatedError: The environment asks for it.
    """
    if is_distributed_emulation_enabled():
        raise not_simulated(
            f"{_VARIABLE}={os.environ[_VARIABLE]}",
            "It would leave collectives out. Unset it, and start a process for each rank.",
        )


__getattr__ = missing(__name__)
