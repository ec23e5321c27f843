"""What the fused kernel cannot do.

B batch, H query heads, G key heads, T query tokens, S key tokens, D head dim.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lightning_gaudi._core import vendor

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_OF_THE_KERNEL = (torch.float32, torch.bfloat16)


def is_torchs_to_answer(
    tensors: tuple[Tensor, Tensor, Tensor],
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
) -> bool:
    """Returns whether the arguments are torch's to refuse, or leave nothing to compute."""
    query = tensors[0]
    if any(t.is_nested for t in tensors):
        return True
    if attn_mask is not None and (is_causal or attn_mask.device != query.device):
        return True
    same = torch.is_autocast_enabled("hpu") or all(t.dtype == query.dtype for t in tensors)
    known = all(t.dtype in _DTYPES for t in tensors)
    return not (same and known and 0 <= dropout_p < 1 and all(t.numel() for t in tensors))


def why_not_fused(
    tensors: tuple[Tensor, Tensor, Tensor],
    attn_mask: Tensor | None,
    enable_gqa: bool,
    dtype: torch.dtype,
) -> str | None:
    """Returns what keeps the kernel from computing this, or None.

    Args:
        tensors: Queries (B, H, T, D), keys (B, G, S, D) and values (B, G, S, D), or all without
            heads: (B, T, D).
        attn_mask: Booleans, True where to attend, or numbers that are added to the scores.
        enable_gqa: Whether G may be less than H.
        dtype: What it would be computed in: autocast's dtype, or that of the queries.

    Source: Gaudi PyTorch bridge 1.24.0, hpex/kernels/FusedSDPA.py, whose backward pass has no
    gradient for the mask; habana_eager/ops/fused_sdpa.cpp, which says that none is computed;
    1.19.0 tests/pytest_working/any_mode/FusedSDPA/test_hpu_sdpa.py, which says that a first
    Gaudi does not have it, and knows float32 and bfloat16 alone.
    """
    if (card := _card_without_kernel()) is not None:
        return f"a {card} does not have the vendor's FusedSDPA"
    if dtype not in _OF_THE_KERNEL:
        name = str(dtype).removeprefix("torch.")
        return f"the vendor's FusedSDPA is known to work in float32 and bfloat16, not in {name}"
    if any(map(is_traceable_wrapper_subclass, tensors)):
        return "the tensors are of a class of their own, such as DTensor"
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        return "torch.func transforms it, which the kernel has no rules for"
    if attn_mask is not None and attn_mask.requires_grad and torch.is_grad_enabled():
        return "the mask wants a gradient, which the kernel does not compute"
    if not _have_shapes_of_the_kernel(*tensors, enable_gqa):
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
        return f"queries, keys and values of the shapes {shapes} are not (B, H, T, D) or (B, T, D)"
    return None


def _card_without_kernel() -> str | None:
    """Returns the card of this process if the vendor's kernel is not for it, else None."""
    card = vendor.generation()
    return None if card is None or card.has_fused_attention else card.title


# The driver cannot be asked inside a compiled graph, and its answer never changes: it is asked as
# the graph is traced. This is what torch.compiler's assume_constant_result does (torch 2.6 to
# 2.13), which imports the compiler for it.
_card_without_kernel._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _have_shapes_of_the_kernel(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> bool:
    if not q.dim() == k.dim() == v.dim() or q.dim() not in (3, 4):
        return False
    same_tokens = q.shape[-1] == k.shape[-1] and k.shape[-2] == v.shape[-2]
    if not same_tokens or not q.shape[0] == k.shape[0] == v.shape[0]:
        return False
    if q.dim() == 3:
        return True
    heads, groups = q.shape[1], k.shape[1]
    fits = groups in (heads, 1) or (enable_gqa and heads % groups == 0)
    return fits and v.shape[1] == groups
