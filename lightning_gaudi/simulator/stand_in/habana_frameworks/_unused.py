"""Finds the part of the vendor's package that no code, recipe or example of ours uses.

That part has the vendor's names like the rest, and is loaded when somebody asks for it.
"""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "stand_in_unused"


def folder_of(package: str) -> str:
    """Returns the second folder in which Python looks for the modules of a package.

    Args:
        package: The package's `__name__`.
    """
    return str(_FOLDER.joinpath(*package.split(".")))
