"""Whether checkpoints are trusted: loading one may then run code that is in it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from lightning_utilities.core.rank_zero import rank_zero_warn
from typing_extensions import ParamSpec

from . import settings

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_by: ContextVar[str | bool | None] = ContextVar("_by", default=None)
"""The setting that trusts: empty if a strategy has none, None if none loads, False for never."""

_warned: set[str] = set()

_TORCHS = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
"""Torch's variable: its `torch.load` then trusts all files."""

ADVICE = (
    "pass reliability={'trust_checkpoints': True} to the strategy, the callback "
    f"Reliability(trust_checkpoints=True), or set {settings.VARIABLE}=trust_checkpoints=on"
)
"""How checkpoints are trusted."""


@contextmanager
def trusting(is_on: bool, weights_only: bool | None = None) -> Iterator[None]:
    """Trusts checkpoints, or does not, while the block runs.

    Args:
        is_on: `ReliabilitySettings.trust_checkpoints` of a strategy.
        weights_only: What the user says of this one, which comes first.
    """
    by = {True: False, False: "weights_only=False", None: "trust_checkpoints" if is_on else ""}
    token = _by.set(by[weights_only])
    try:
        yield
    finally:
        _by.reset(token)


def as_told(load: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Lets a strategy's method trust what it loads as far as the strategy and its caller say."""

    @functools.wraps(load)
    def loading(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        strategy: Any = args[0]
        weights_only: Any = kwargs.get("weights_only")
        with trusting(strategy.reliability.trust_checkpoints, weights_only):
            return load(*args, **kwargs)

    return loading


def trusted_by(weights_only: bool | None = None) -> str | None:
    """Returns the setting that trusts checkpoints here and now, after a warning; or None.

    Args:
        weights_only: What the user says of this one, which comes first.

    Raises:
        ValueError: The variable of the environment has a wrong value.
    """
    by = _found() if weights_only is None else "" if weights_only else "weights_only=False"
    if by and by not in _warned:
        _warned.add(by)
        rank_zero_warn(
            f"Checkpoints are trusted ({by}): code that they hold runs when they are loaded. Leave "
            "that out for files that others have made."
        )
    return by or None


def torch_trusts_all() -> bool:
    """Returns whether torch was told so for the whole program, by its own variable."""
    return os.environ.get(_TORCHS, "0").lower() in ("1", "y", "yes", "true")


def _found() -> str:
    by = _by.get()
    if isinstance(by, bool):
        return ""
    if by is None:
        found = settings.SETTING.from_environment()
        by = "trust_checkpoints" if found is not None and found.trust_checkpoints else ""
    return _TORCHS if not by and torch_trusts_all() else by
