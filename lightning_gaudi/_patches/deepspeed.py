"""Keeps the import of DeepSpeed from changing the whole process.

DeepSpeed's accelerator for HPUs makes all of torch deterministic, which costs speed and makes some
operations raise, stops torch from filling new tensors, and sets variables of the vendor's bridge,
all for the rest of the program. `patch_accelerator` undoes that, whoever imports DeepSpeed.
`set_variables` sets the two variables for as long as a strategy of ours trains with DeepSpeed.

Source: deepspeed 0.19.8, `accelerator/hpu_accelerator.py`.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from .apply import require, wrap
from .register import REGISTER

_wanted: dict[str, str] = {}
"""The variables of the vendor's bridge that DeepSpeed has set, and needs."""


def patch_accelerator(module: ModuleType, family: Any) -> None:
    """Keeps DeepSpeed's accelerator from changing the process.

    Args:
        module: `deepspeed.accelerator.hpu_accelerator`.
        family: Not used.
    """
    require("deepspeed-import", module, "HPU_Accelerator")

    @wrap("deepspeed-import", module.HPU_Accelerator, "__init__")
    def init(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
        with unchanged() as changed:
            original(self, *args, **kwargs)
        _wanted.update({name: value for name, value in changed.items() if name.startswith("PT_")})


@functools.cache
def check_names() -> None:
    """Raises unless the installed DeepSpeed has all names that our patches change.

    Raises:
        MissingNameError: It lacks something; the message names the versions that have it.
    """
    for patch in REGISTER:
        for target in patch.targets if patch.library == "deepspeed" else ():
            place, _, path = target.partition(":")
            if place.startswith("deepspeed."):
                owner: Any = importlib.import_module(place)
                for name in path.split("."):
                    require(patch.name, owner, name)
                    owner = getattr(owner, name)


@contextmanager
def unchanged() -> Iterator[dict[str, str]]:
    """Undoes what the block does to torch's determinism and to the environment.

    Yields:
        A dict, filled at the end, with the variables that the block set or changed.
    """
    environment = dict(os.environ)
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    changed: dict[str, str] = {}
    try:
        yield changed
    finally:
        changed |= {k: v for k, v in os.environ.items() if environment.get(k) != v}
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        torch.use_deterministic_algorithms(is_deterministic, warn_only=warns_only)
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


def set_variables() -> list[str]:
    """Sets the variables of the vendor's bridge that DeepSpeed needs, unless the user has.

    Returns:
        The names of those set, for `unset_variables`.
    """
    names = [name for name in _wanted if name not in os.environ]
    os.environ.update({name: _wanted[name] for name in names})
    return names


def unset_variables(names: list[str]) -> None:
    """Undoes `set_variables`."""
    for name in names:
        os.environ.pop(name, None)
