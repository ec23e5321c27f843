"""Clips gradients by their total norm, by the vendor's kernel where that is possible.

In eager mode torch launches several operators for each tensor, and the vendor's kernel is a single
launch. In lazy mode torch's operators become part of the optimizer's graph, where the vendor's
class would end the graph.

The kernel computes as torch does (norm, plus 1e-6, division, product), but in the dtype of the
first gradient, sums of squares included. It knows the 2-norm only.
Source: Intel Gaudi PyTorch bridge, `hpu_ops/backend/fused_clip_norm_gen.cpp` of 1.19 and 2026,
`hpex/normalization/FusedClipNorm.py`.
"""

from __future__ import annotations

import math
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
        norm_type: The p of the norm; may be infinite. Torch's code is used for any but 2.
        error_if_nonfinite: Whether to wait for the norm, and raise if it is infinite or not a
            number before anything is scaled. Torch's code is used for any dtype but float32 then.

    Returns:
        The norm before clipping, of shape (), on the gradients' device.

    Raises:
        RuntimeError: The norm is infinite or not a number, and `error_if_nonfinite`.
    """
    held = list(parameters)
    gradients = [parameter.grad for parameter in held if parameter.grad is not None]
    if norm_type == 2 and _has_kernel(gradients) and not vendor.is_lazy():
        may_scale = not error_if_nonfinite
        if error_if_nonfinite and gradients[0].dtype == torch.float32:
            # Looked at before anything is scaled. Torch's code raises below if it is not finite.
            may_scale = math.isfinite(vendor.total_norm(gradients).item())
        if may_scale:
            return vendor.fused_clip_norm(gradients, max_norm)
    return clip_grad_norm_(held, max_norm, norm_type, error_if_nonfinite)


def _has_kernel(gradients: Sequence[Tensor]) -> bool:
    """Returns whether gradients are plain tensors on the card, of one dtype that it supports."""
    dtypes = {gradient.dtype for gradient in gradients}
    return (
        len(dtypes) == 1
        and dtypes.issubset(_DTYPES)
        and all(
            type(each) is Tensor and each.device.type == "hpu" and each.numel()
            for each in gradients
        )
    )
