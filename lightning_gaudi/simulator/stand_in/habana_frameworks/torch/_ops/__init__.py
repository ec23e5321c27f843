"""The custom operators `torch.ops.hpu.*`, computed by torch operators on the device.

Schemas are the vendor's (release 1.19; `nf4` is of later ones). `optimizer_adamw` has another one
in lazy mode; `sdpa_recomp_fwd` and `fp8_sdpa_recomp_fwd` take the two arguments of 1.24.
"""

from . import (
    attention,
    fp8,
    fp8_attention,
    fp8_gemm,
    gradient_descent,
    int4,
    losses,
    moving_average,
    nf4,
    normalization,
    optimizers,
    rotary,
    softmax,
)

__all__ = [
    "attention",
    "fp8",
    "fp8_attention",
    "fp8_gemm",
    "gradient_descent",
    "int4",
    "losses",
    "moving_average",
    "nf4",
    "normalization",
    "optimizers",
    "rotary",
    "softmax",
]
