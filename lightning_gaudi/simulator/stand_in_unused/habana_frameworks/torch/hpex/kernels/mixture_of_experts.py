"""Refuses mixtures of experts in fp8."""

from __future__ import annotations

from ...._missing import missing, refused

_WHY = (
    "What the card's operator keeps between the two passes is not documented. Compute the experts "
    "with transformer_engine.Linear."
)

mixture_of_experts_fwd_fp8_wrapper = refused(
    "habana_frameworks.torch.hpex.kernels.mixture_of_experts_fwd_fp8_wrapper", _WHY
)
mixture_of_experts_bwd_fp8_wrapper = refused(
    "habana_frameworks.torch.hpex.kernels.mixture_of_experts_bwd_fp8_wrapper", _WHY
)

__getattr__ = missing(__name__)
