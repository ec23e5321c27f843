"""Running one rank of many without the others, as the vendor's package can.

Its collectives then do nothing, so that results mean nothing; what is measured is speed. Here there
is none to measure, and start as many processes as there are ranks.
"""

from __future__ import annotations

import os

from ...._missing import missing, not_simulated

_VARIABLE = "PT_HPU_EMULATE_DISTRIBUTED"


def is_distributed_emulation_enabled() -> bool:
    """Returns whether the environment asks for it."""
    return os.environ.get(_VARIABLE, "").lower() in ("true", "1")


def distributed_emulation_apply_if_enabled() -> None:
    """Refuses it, if the environment asks for it.

    Raises:
        NotSimulatedError: It does.
    """
    if is_distributed_emulation_enabled():
        raise not_simulated(
            f"{_VARIABLE}={os.environ[_VARIABLE]}",
            "It would leave collectives out. Unset it, and start a process for each rank.",
        )


__getattr__ = missing(__name__)
