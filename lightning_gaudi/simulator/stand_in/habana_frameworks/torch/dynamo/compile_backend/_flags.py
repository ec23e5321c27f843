"""Reads the options of the compiler from the environment."""

from __future__ import annotations

import os

from ...._release import release

_YES = ("on", "1", "yes", "true", "y", "t")
_NO = ("off", "0", "no", "false", "n", "f")


def is_new() -> bool:
    """Returns whether the options are those of 2025 and not those of 1.19."""
    return release().number >= 122


def flag(variable: str, default: bool) -> bool:
    """Returns whether a variable says yes.

    Raises:
        AssertionError: It says neither (the vendor's type of error).
    """
    value = os.environ.get(variable, "1" if default else "0").lower()
    if value not in (*_YES, *_NO):
        raise AssertionError(
            f"{variable}={value} says neither yes nor no. Set it to 1 or 0, or unset it."
        )
    return value in _YES


def decomposition() -> str:
    """Returns which operators are taken apart before a graph is compiled.

    Raises:
        AssertionError: There is no such mode (the vendor's type of error).
    """
    variable = "PT_HPU_COMPILE_DECOMPOSITION_MODE"
    modes = ["habana", "core_aten", "none", *(["inductor"] if is_new() else [])]
    value = os.environ.get(variable, "habana").lower()
    if value not in modes:
        raise AssertionError(f"{variable}={value} is no mode. Set it to one of {', '.join(modes)}.")
    return value
