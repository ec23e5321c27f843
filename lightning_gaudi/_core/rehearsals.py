"""Whether this process is one that `lightning-gaudi plan` has started: no tensor has values."""

from __future__ import annotations

import os

VARIABLE = "_LIGHTNING_GAUDI_REHEARSAL"
"""The file with what such a process is to rehearse."""


def is_rehearsal() -> bool:
    """Whether this process rehearses, so that nobody reads a value."""
    return bool(os.environ.get(VARIABLE))
