"""Offers the device's random number generator, of which a process has one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._compile import _disable_dynamo as untraced  # see streams.py

from ..._missing import missing
from .._binding import C
from . import _parallel_random
from ._parallel_random import set_rng_ctx, unset_rng_ctx
from ._utils import Device, _get_device_index

__all__ = [
    "default_generators",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_ctx",
    "set_rng_state",
    "set_rng_state_all",
    "unset_rng_ctx",
]

default_generators: list[torch.Generator] = [C.default_generator()]


def _generator(device: Device) -> torch.Generator:
    index = _get_device_index(device, optional=True)
    if index != 0:
        raise RuntimeError(
            f"The random state of hpu:{index} is not this process's: it drives hpu:0. Pass 'hpu'."
        )
    return default_generators[0]


@untraced
def get_rng_state(device: Device = "hpu") -> torch.Tensor:
    """Returns the generator's state, a CPU ByteTensor; in `set_rng_ctx` a seed and an offset.

    Raises:
        RuntimeError: Another index than 0 is asked for.
    """
    generator = _generator(device)
    if _parallel_random.is_set():
        return _parallel_random.get_state(generator)
    return generator.get_state()


@untraced
def set_rng_state(new_state: torch.Tensor, device: Device = "hpu") -> None:
    """Sets the generator's state to one that `get_rng_state` returned.

    Raises:
        RuntimeError: Another index than 0 is asked for.
    """
    generator = _generator(device)
    if _parallel_random.is_set():
        _parallel_random.set_state(generator, new_state)
    else:
        generator.set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Returns the states of all devices of this process: one."""
    return [get_rng_state(0)]


def set_rng_state_all(new_states: Sequence[torch.Tensor]) -> None:
    """Sets the states that `get_rng_state_all` returned.

    Raises:
        RuntimeError: There is not exactly one state.
    """
    if len(new_states) != 1:
        raise RuntimeError(
            f"A process has one HPU and so one random state, got {len(new_states)} states. "
            "Pass what get_rng_state_all() returned."
        )
    set_rng_state(new_states[0], 0)


def manual_seed(seed: int) -> torch.Generator:
    """Seeds the device's generator and returns it."""
    return default_generators[0].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices of this process: one."""
    manual_seed(seed)


def seed() -> int:
    """Seeds the device's generator at random and returns the seed."""
    return default_generators[0].seed()


def seed_all() -> None:
    """Seeds the generators of all devices of this process at random."""
    seed()


def initial_seed() -> int:
    """Returns the seed that the device's generator started from."""
    return default_generators[0].initial_seed()


__getattr__ = missing(__name__)
