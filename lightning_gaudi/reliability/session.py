"""Which run this process is part of: what checkpoints say of who saved them."""

from __future__ import annotations

import time
import uuid
from typing import NamedTuple


class Session(NamedTuple):
    """A fit. One that resumes has the name of the run that it goes on with, and begins later."""

    run: str
    began: float
    """In seconds since 1970."""


_current: Session | None = None


def begin_session() -> None:
    """Notes that a fit begins, of a new run as far as is known yet."""
    global _current
    _current = Session(uuid.uuid4().hex, time.time())


def continue_run(run: str) -> None:
    """Notes that the fit goes on with an earlier run."""
    global _current
    _current = current_session()._replace(run=run)


def current_session() -> Session:
    """Returns the fit that this process is in; one begins if there is none."""
    if _current is None:
        begin_session()
    assert _current is not None
    return _current
