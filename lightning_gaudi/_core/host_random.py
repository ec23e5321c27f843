"""Takes and restores the random states of Python, NumPy and torch on the host, as bytes."""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_gaudi.untrusted import printable

# The Mersenne Twister of `random` has 624 words and a position; `gauss` may keep one number more.
_PYTHON = struct.Struct("<625I?d")
_NUMPY = struct.Struct("<i?d")


class HostRandom(NamedTuple):
    """The states of the three global generators, which can be compared and sent."""

    python: bytes
    numpy: bytes
    """Empty if NumPy is not imported, or a program has replaced its generator."""
    torch: bytes


def take() -> HostRandom:
    """Returns the states as they are now. The device's generator is not among them."""
    # Packed to bytes of a fixed length, which compare fast and load without pickle.
    _, state, gauss = random.getstate()
    python = _PYTHON.pack(*state, gauss is not None, gauss or 0.0)
    return HostRandom(python, _take_numpy(), torch.get_rng_state().numpy().tobytes())


def put(states: HostRandom) -> None:
    """Sets the generators to states that were taken, here or in another process.

    Raises:
        ValueError: One is no state of its generator; the generators stay as they were.
    """
    # One of three may be refused after another was set, so all are put back then.
    before = take()
    try:
        _put(states)
    except (ValueError, TypeError, IndexError, RuntimeError, struct.error) as error:
        _put(before)
        raise ValueError(f"A random state is none: {printable(error, max_chars=200)}") from error


def _put(states: HostRandom) -> None:
    *state, has_gauss, gauss = _PYTHON.unpack(states.python)
    random.setstate((3, tuple(state), gauss if has_gauss else None))
    if states.numpy and (numpy := sys.modules.get("numpy")) is not None:
        position, has_gauss, gauss = _NUMPY.unpack(states.numpy[: _NUMPY.size])
        keys = numpy.frombuffer(states.numpy[_NUMPY.size :], dtype="<u4")
        numpy.random.set_state(("MT19937", keys, position, int(has_gauss), gauss))
    torch.set_rng_state(_tensor(states.torch))


def to_tensors(states: HostRandom) -> dict[str, Tensor]:
    """Returns CPU tensors of bytes by name, which any loader of tensors reads from a checkpoint.

    Equal states are one tensor, for reading: a checkpoint holds it once. An epoch's first states
    and those of now are often alike, and all ranks are sent those of all.
    """
    return {name: _tensor(value) for name, value in states._asdict().items()}


def from_tensors(saved: Mapping[str, Tensor]) -> HostRandom:
    """Returns what `to_tensors` was given.

    Raises:
        ValueError: A state is missing, or is no tensor of bytes.
    """
    for name in HostRandom._fields:
        value = saved.get(name)
        if not isinstance(value, Tensor) or value.dtype != torch.uint8 or value.dim() != 1:
            raise ValueError(f"The random state of {name} in the checkpoint is no tensor of bytes.")
    return HostRandom(*(saved[name].numpy().tobytes() for name in HostRandom._fields))


def _take_numpy() -> bytes:
    # Not imported: a program without NumPy should not pay for it.
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return b""
    state = numpy.random.get_state()
    if not isinstance(state, tuple) or state[0] != "MT19937":
        return b""  # a program may have put another in its place
    _, keys, position, has_gauss, gauss = state
    content: bytes = keys.astype("<u4").tobytes()
    return _NUMPY.pack(position, bool(has_gauss), gauss) + content


@lru_cache(maxsize=16)
def _tensor(content: bytes) -> Tensor:
    if not content:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
