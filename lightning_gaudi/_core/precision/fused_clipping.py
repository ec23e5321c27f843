"""Gradients clipped by the norm that they have together, by the vendor's kernel where it can.

In eager mode torch launches some operators for each tensor, and the kernel is one. In lazy mode
torch's are a part of the optimizer's graph, where the vendor's class would cut a graph of its own.

The kernel takes the norm, adds 1e-6, divides, and multiplies, as torch does, but in the dtype of
the first gradient, sums of squares included. It clips by the 2-norm alone.
Source: Intel Gaudi PyTorch bridge, `hpu_ops/backend/fused_clip_norm_gen.cpp` of 1.19 and 2026,
`hpex/normalization/FusedClipNorm.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from .. import vendor

# Not float16, whose squares overflow beyond 256.
_DTYPES = (torch.float32, torch.bfloat16)


def clip_norm(
    parameters: Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    *,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scales gradients down so that their norm is at most `max_norm`, as torch's `clip_grad_norm_`.

    Args:
        parameters: Those whose gradients are meant.
        max_norm: In units of the gradients.
        norm_type: The p of the norm; may be infinite. Torch clips by any other than 2.
        error_if_nonfinite: Whether to wait for the norm, look at it, and leave the gradients alone
            if it is infinite or no number. Torch does that.

    Returns:
        The norm before clipping, of shape (), on the gradients' device: nobody waits for it.

    Raises:
        RuntimeError: The norm is infinite or not a number, and `error_if_nonfinite`.
    """
    held = list(parameters)
    gradients = [parameter.grad for parameter in held if parameter.grad is not None]
    is_plain = norm_type == 2 and not error_if_nonfinite
    if is_plain and _has_kernel(gradients) and not vendor.is_lazy():
        return vendor.fused_clip_norm(gradients, max_norm)
    return clip_grad_norm_(held, max_norm, norm_type, error_if_nonfinite)


def _has_kernel(gradients: Sequence[Tensor]) -> bool:
    """Tells if they are whole, on the card, and of one dtype, which the kernel takes for all."""
    dtypes = {gradient.dtype for gradient in gradients}
    return (
        len(dtypes) == 1
        and dtypes.issubset(_DTYPES)
        and all(
            type(each) is Tensor and each.device.type == "hpu" and each.numel()
            for each in gradients
        )
    )
