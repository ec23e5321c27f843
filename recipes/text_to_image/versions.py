"""Checks, before diffusers is imported, that it is installed and new enough."""

from __future__ import annotations

import importlib.metadata
import importlib.util

from recipes.common.errors import UserError

OLDEST = (0, 35)
"""The oldest version of diffusers that this recipe runs with."""
_INSTALL = "pip install 'lightning-gaudi[recipes,diffusion]'"


def check_diffusers() -> None:
    """Refuses to go on without a diffusers that is new enough.

    Raises:
        UserError: It is not installed, or too old.
    """
    if importlib.util.find_spec("diffusers") is None:
        raise UserError(f"This recipe needs diffusers, which is not installed. Run: {_INSTALL}")
    found = importlib.metadata.version("diffusers")
    if tuple(int(part) for part in found.split(".")[:2]) < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise UserError(
            f"This recipe needs diffusers {wanted} or later, but {found} is installed. Run: "
            f"{_INSTALL}"
        )
