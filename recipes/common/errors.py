"""Mistakes of the user's, which the command line says in a line, without a traceback."""

from __future__ import annotations


class UserError(ValueError):
    """A setting, a file or a row that cannot be used; the message says which, and what to do."""
