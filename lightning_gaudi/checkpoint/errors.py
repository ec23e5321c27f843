"""What is raised of checkpoints that are not loaded."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager

from lightning_gaudi._core.collectives import gather_objects

ADVICE = "Use another checkpoint, or copy it again from where it was saved."


class UntrustedCheckpointError(pickle.UnpicklingError, ValueError):
    """A checkpoint holds more than tensors and plain data, and was not loaded."""


class RefusedError(pickle.UnpicklingError):
    """What it is that a pickle asks for; whoever knows the file says the rest."""


class ExceededError(pickle.UnpicklingError):
    """What a file claims that is more than it can hold; whoever knows the file says the rest."""


class DamagedCheckpointError(ValueError):
    """A checkpoint is not what was saved; the message names the file, what it has and should."""


class IncompleteCheckpointError(DamagedCheckpointError, FileNotFoundError):
    """A file of a checkpoint is not there."""


@contextmanager
def damage_on_all_ranks() -> Iterator[None]:
    """Raises the error of a damaged checkpoint, which any rank finds in a block, on all of them.

    The devices work on.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        error = caught
    mine = (type(error), str(error)) if isinstance(error, DamagedCheckpointError) else None
    for found in gather_objects(mine):
        if found is not None:
            kind, message = found
            raise kind(message) from error
    if error is not None:
        raise error
