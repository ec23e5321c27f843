"""Defines how scales of fp8 tensors are chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

import torch

from ....._missing import missing

AmaxAlgorithm = Literal["max", "most_recent"] | Callable[[torch.Tensor], torch.Tensor]


class _Largest(NamedTuple):
    """The largest numbers that scales aim at."""

    max_fwd: float
    max_bwd: float


class Format(Enum):
    """The fp8 formats of the forward and of the backward pass.

    Scales aim at 240 as e4m3's largest number on every card: it is a Gaudi 2's.

    Source: Gaudi PyTorch bridge, transformer_engine/recipe.py (commit cb252c9).
    """

    E4M3 = _Largest(240.0, 240.0)
    """Both in e4m3."""
    E5M2 = _Largest(57344.0, 57344.0)
    """Both in e5m2."""
    HYBRID = _Largest(240.0, 57344.0)
    """Forward in e4m3, backward in e5m2."""


class _OverrideLinearPrecision(NamedTuple):
    """Which products of a linear layer are not in fp8."""

    fprop: bool = False
    dgrad: bool = False
    wgrad: bool = False


_NO_OVERRIDE = _OverrideLinearPrecision()


@dataclass
class DelayedScaling:
    """Computes scales from the largest absolute values of steps before.

    A tensor's scale is `2 ** (floor(log2(largest number / amax)) - margin)`.

    Raises:
        ValueError: A setting is not supported.
    """

    margin: int = 0
    """How many powers of two to stay below the largest number."""
    interval: int = 1
    """Scales are computed, and before that values measured, once in so many steps."""
    fp8_format: Format = Format.E5M2
    """E5M2 or HYBRID."""
    amax_history_len: int = 1
    """How many measurements are kept."""
    amax_compute_algo: AmaxAlgorithm = "most_recent"
    """"max" of the history, its first row for "most_recent", or a function of the history of shape
    (steps, tensors). The history is a ring: with more than one row, its first is not always the
    latest, there as here."""
    override_linear_precision: _OverrideLinearPrecision = _NO_OVERRIDE
    """All False."""
    scaling_factor_compute_algo: Callable[..., torch.Tensor] | None = None
    """A function of amax, old scale, largest number and recipe, instead of the above."""
    reduce_amax: bool = True
    """Whether the largest values of all ranks of the group count."""

    def __post_init__(self) -> None:
        if self.fp8_format not in (Format.E5M2, Format.HYBRID):
            raise ValueError(
                f"fp8_format={self.fp8_format} does not train: pass Format.E5M2 or Format.HYBRID."
            )
        if any(self.override_linear_precision):
            raise ValueError(
                f"override_linear_precision={tuple(self.override_linear_precision)} is not "
                "supported: all products are in fp8. Leave it out."
            )


__getattr__ = missing(__name__)
