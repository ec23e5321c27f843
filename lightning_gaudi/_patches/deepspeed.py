"""What importing DeepSpeed for the HPU changes in this process and should not, kept from it.

Its accelerator makes all of torch deterministic, which costs speed and makes some operations raise,
has new tensors filled no more, and sets variables of the vendor's bridge: for the whole program,
whatever it goes on to do. `patch_accelerator` undoes that wherever DeepSpeed is imported from, the
user's program and Lightning included. `set_variables` gives the bridge its two variables for as
long as a strategy of ours trains with DeepSpeed.

Source: deepspeed 0.19.8, `accelerator/hpu_accelerator.py`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

_MARK = "_lightning_gaudi_is_patched"

_wanted: dict[str, str] = {}
"""The variables that DeepSpeed set: what it needs of the vendor's bridge."""


def patch_accelerator(module: ModuleType) -> None:
    """Have `deepspeed.accelerator.hpu_accelerator`, just imported, leave the process as it is.

    Doing it again is harmless.
    """
    accelerator: Any = getattr(module, "HPU_Accelerator", None)
    if accelerator is None or _MARK in vars(accelerator):
        return
    original = accelerator.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        with unchanged() as changed:
            original(self, *args, **kwargs)
        _wanted.update({name: value for name, value in changed.items() if name.startswith("PT_")})

    accelerator.__init__ = init
    setattr(accelerator, _MARK, True)


@contextmanager
def unchanged() -> Iterator[dict[str, str]]:
    """Undo what the block does to torch's determinism and to the environment.

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
    """Set the variables of the vendor's bridge that DeepSpeed asks for, where the user has not.

    Returns:
        The names of those set, for `unset_variables`.
    """
    names = [name for name in _wanted if name not in os.environ]
    os.environ.update({name: _wanted[name] for name in names})
    return names


def unset_variables(names: list[str]) -> None:
    """Undo `set_variables`."""
    for name in names:
        os.environ.pop(name, None)
