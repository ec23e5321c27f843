"""What is raised of checkpoints that are not loaded."""

from __future__ import annotations

import pickle


class UntrustedCheckpointError(pickle.UnpicklingError, ValueError):
    """A checkpoint holds more than tensors and plain data, and was not loaded."""


class RefusedError(pickle.UnpicklingError):
    """What it is that a pickle asks for; whoever knows the file says the rest."""


class ExceededError(pickle.UnpicklingError):
    """What a file claims that is more than it can hold; whoever knows the file says the rest."""
