"""Mixtures of experts in fp8."""

from __future__ import annotations

from ...._missing import missing, refusing

_WHY = (
    "What the card's operator keeps between the two passes is not documented. Compute the experts "
    "with transformer_engine.Linear."
)

mixture_of_experts_fwd_fp8_wrapper = refusing(
    "hpex.kernels.mixture_of_experts_fwd_fp8_wrapper", _WHY
)
mixture_of_experts_bwd_fp8_wrapper = refusing(
    "hpex.kernels.mixture_of_experts_bwd_fp8_wrapper", _WHY
)

__getattr__ = missing(__name__)
