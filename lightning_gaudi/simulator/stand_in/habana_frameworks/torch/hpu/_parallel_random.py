"""Shows the random state as DTensor wants it: as a seed and an offset, which ranks move.

torch asks an HPU for it between `set_rng_ctx` and `unset_rng_ctx`. The device draws its numbers by
another algorithm, so every (seed, offset) stands for a seed of the device's generator. The offset
can be computed back from that seed, so the generator's state is all the state there is: saving and
restoring it, as activation checkpointing does, gives the same numbers again.
"""

from __future__ import annotations

import torch

_MASK = 2**64 - 1
_MAX_OFFSET = 2**48
_MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # splitmix64's
_STATE_BYTES = 16

_context = {"is_set": False, "seed": -1}


def set_rng_ctx(rng_ctx: str = "philox") -> None:
    """Shows the random state as a seed and an offset from now on.

    Args:
        rng_ctx: "philox", the only one.

    Raises:
        ValueError: Another context is asked for.
    """
    _check(rng_ctx)
    _context["is_set"] = True


def unset_rng_ctx(rng_ctx: str = "philox") -> None:
    """Shows the random state as the device's generator keeps it again.

    Args:
        rng_ctx: "philox", the only one.

    Raises:
        ValueError: Another context is asked for.
    """
    _check(rng_ctx)
    _context["is_set"] = False


def is_set() -> bool:
    """Returns whether the random state is shown as a seed and an offset."""
    return _context["is_set"]


def get_state(generator: torch.Generator) -> torch.Tensor:
    """Returns seed and offset in 16 bytes."""
    seed = _context["seed"]
    offset = (_unmix(generator.initial_seed()) - _mix(seed)) & _MASK
    # Somebody has seeded the generator: both begin anew.
    if seed < 0 or offset >= _MAX_OFFSET:
        seed, offset = generator.initial_seed(), 0
        _context["seed"] = seed
    return torch.tensor(list((seed | offset << 64).to_bytes(_STATE_BYTES, "little"))).byte()


def set_state(generator: torch.Generator, state: torch.Tensor) -> None:
    """Sets seed and offset from 16 bytes."""
    if state.numel() != _STATE_BYTES:
        raise RuntimeError(
            f"Within set_rng_ctx('philox') a random state has {_STATE_BYTES} bytes, a seed and an "
            f"offset; got {state.numel()}. Call unset_rng_ctx() first."
        )
    content = bytes(state.tolist())
    seed, offset = (int.from_bytes(part, "little") for part in (content[:8], content[8:]))
    _context["seed"] = seed
    generator.manual_seed(_mix(_mix(seed) + offset))


def _check(rng_ctx: str) -> None:
    if rng_ctx != "philox":
        raise ValueError(f"The HPU knows the random context 'philox', got {rng_ctx!r}.")


def _mix(value: int) -> int:
    """Mixes the bits of a number by splitmix64, one to one, so that `_unmix` can undo it."""
    value &= _MASK
    for shift, factor in _MIXING:
        value = ((value ^ value >> shift) * factor) & _MASK
    return value ^ value >> 31


def _unmix(value: int) -> int:
    value = _undo_shift(value, 31)
    for shift, factor in reversed(_MIXING):
        value = _undo_shift(value * pow(factor, -1, 2**64) & _MASK, shift)
    return value


def _undo_shift(value: int, shift: int) -> int:
    result = value
    for _ in range(64 // shift):
        result = value ^ result >> shift
    return result
