"""Ends steps, at which the gathered operations of lazy mode become one graph and run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._missing import missing
from .. import _events
from .._binding import C
from ..hpu.metrics import metrics
from ..utils.internal import is_lazy, lazy_only

_closures: list[Callable[[], object]] = []


@lazy_only
def add_step_closure(closure: Callable[..., object], args: tuple[Any, ...] = ()) -> None:
    """Calls `closure(*args)` after the next `mark_step`; nothing in eager mode.

    Args:
        closure: What to call once the step's results are there.
        args: Its arguments, such as the loss.
    """
    _closures.append(lambda: closure(*args))


@lazy_only
def mark_step(device_str: str = "", sync: bool = False) -> None:
    """Ends the step: runs the gathered operations, then the closures; nothing in eager mode.

    Args:
        device_str: Unused; there is one device.
        sync: Whether to wait until the graph has run, which counts as a host sync.
    """
    C.mark_step()
    if sync:
        C.synchronize()
    _events.on_mark_step()
    metrics.on_mark_step()
    _run_closures()


@lazy_only
def iter_mark_step(device_str: str = "") -> None:
    """Ends the step of an inference loop, as `mark_step` does on the simulated HPU."""
    mark_step(device_str)


def _mark_step_if_lazy(device_str: str = "") -> None:
    """Ends the step in lazy mode; optimizers call this."""
    if is_lazy():
        mark_step(device_str)


def _run_closures() -> None:
    # A closure may add others, which then wait for the next step.
    closures = _closures[:]
    _closures.clear()
    for closure in closures:
        closure()


__getattr__ = missing(__name__)
