"""The custom operators `torch.ops.hpu.*`, computed by torch operators on the device.

Schemas are the vendor's (release 1.19); `optimizer_adamw` has another one in lazy mode, and
`sdpa_recomp_fwd` and `fp8_sdpa_recomp_fwd` take the two arguments of 1.24.
"""

from . import (
    attention,
    fp8,
    fp8_attention,
    fp8_gemm,
    gradient_descent,
    losses,
    moving_average,
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
    "losses",
    "moving_average",
    "normalization",
    "optimizers",
    "rotary",
    "softmax",
]
