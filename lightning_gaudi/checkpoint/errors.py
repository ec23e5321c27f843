"""Errors of checkpoints that cannot be loaded."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager

from lightning_gaudi._core.collectives import gather_objects

ADVICE = "Use another checkpoint, or copy it again from where it was saved."


class UntrustedCheckpointError(pickle.UnpicklingError, ValueError):
    """A checkpoint holds more than tensors and plain data, and was not loaded."""


class RefusedError(pickle.UnpicklingError):
    """Says what a pickle asks for that is refused; the caller, who knows the file, names it."""


class ExceededError(pickle.UnpicklingError):
    """Says what a file claims beyond what it holds; the caller, who knows the file, names it."""


class DamagedCheckpointError(ValueError):
    """A checkpoint is not what was saved; the message names the file, what it has and should."""


class IncompleteCheckpointError(DamagedCheckpointError, FileNotFoundError):
    """A file of a checkpoint is missing."""


@contextmanager
def damage_on_all_ranks() -> Iterator[None]:
    """Raises on all ranks the error of a damaged checkpoint that any rank meets in the block.

    The ranks exchange it on the host, so the cards are not waited for.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        error = caught
    # The cause may hold what cannot be pickled, so the kind and the text travel.
    mine = (type(error), str(error)) if isinstance(error, DamagedCheckpointError) else None
    for found in gather_objects(mine):
        if found is not None:
            kind, message = found
            raise kind(message) from error
    if error is not None:
        raise error
