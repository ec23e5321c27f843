"""What one rank does or fails at, known to all: none of them waits for one that has raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from .collectives import broadcast_object, gather_objects, is_connected

_Value = TypeVar("_Value")


def on_rank_zero(function: Callable[[], _Value]) -> _Value:
    """Returns what the function returns on rank 0, which alone calls it; what it raises, all raise.

    The devices work on.
    """
    value, error = None, None
    if not is_connected() or dist.get_rank() == 0:
        try:
            value = function()
        except Exception as caught:
            error = caught
    value, failure = broadcast_object((value, error and _portable(error)))
    if failure is not None:
        raise error or failure
    return value  # type: ignore[no-any-return]


def raise_together(error: Exception | None) -> None:
    """Raises on all ranks if there is an error on any; each its own, or else the first one's.

    The devices work on.
    """
    failures = gather_objects(error and _portable(error))
    if error is not None:
        raise error
    for rank, failure in enumerate(failures):
        if failure is not None:
            raise type(failure)(f"Rank {rank} failed: {failure}")


def _portable(error: Exception) -> Exception:
    """An error that any process can unpickle, of a kind that says as much as the original's."""
    for kind in (FileNotFoundError, FileExistsError, OSError, ValueError, TypeError):
        if isinstance(error, kind):
            return kind(str(error))
    return RuntimeError(f"{type(error).__name__}: {error}")
