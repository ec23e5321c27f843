"""`HPUProfiler`: what a step costs the host, and a trace of a few steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .by_name import extend_trainer_setup

if TYPE_CHECKING:
    from .hpu import HPUProfiler

__all__ = ["HPUProfiler", "extend_trainer_setup"]


def __getattr__(name: str) -> Any:
    # Importing Lightning imports this package: those who do not profile do not wait for it.
    if name != "HPUProfiler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .hpu import HPUProfiler

    return HPUProfiler
