"""Tells one function, the observer, what the simulated card is given to do, as it happens.

The kinds of events, and what the observer gets with each:

| kind | what | amount | detail |
|---|---|---|---|
| launch | "" | launches of eager mode | |
| graph | "compiled", "recompiled" or "reused"; of lazy mode, each of which is a launch | operations | the shapes that differ |
| compilation | "compiled" or "recompiled"; by torch.compile | 1 | the shapes that differ |
| host_sync | an operator, "copy_to_host", "synchronize", "barrier", "cpu_fallback" | 1 | |
| transfer | "host_to_device" or "device_to_host" | bytes | "blocking" or "", to the card |
| collective | as torch.distributed names it | bytes | |
| rule | a rule's key | 1 | what met it |
| guessed_size | of a dry card: an operator whose result has a size that depends on values | bytes of its arguments | |
"""  # noqa: E501 (a table)

from __future__ import annotations

import sys
from collections.abc import Callable

from lightning_gaudi.simulator import build

Observer = Callable[[str, str, int, str], None]
"""Gets kind, what, amount and detail, in the thread and at the line of the event."""

_observer: Observer | None = None


def observe(observer: Observer) -> None:
    """Calls a function at each event of this process, from now to its end.

    Every event costs a call of the function, so this is for runs of a few steps. An error that it
    raises is printed and changes nothing of the event. It is told of the rules that are met, and no
    warning is given of them.

    Args:
        observer: The function.
    """
    global _observer
    _observer = observer
    sys.modules[build.MODULE].observe_by(observer)


def before_first_use(act: Callable[[], None]) -> None:
    """Calls a function once, right before this process takes its card.

    Args:
        act: The function. It may fork, because the process holds no card yet. It must not raise,
    nor use the card.
    """
    sys.modules[build.MODULE].before_first_use(act)


def is_observed() -> bool:
    """Returns whether there is an observer."""
    return _observer is not None


def tell(kind: str, what: str, amount: int = 1, detail: str = "") -> None:
    """Tells the observer, if there is one, of an event that the device itself does not see."""
    if _observer is not None:
        _observer(kind, what, amount, detail)
