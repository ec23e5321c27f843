"""Calls the vendor's fused kernel with the arguments of `F.scaled_dot_product_attention`.

The kernel gets masks only as finite numbers of the queries' dtype, as in the vendor's tests of
training. It works on slices of a row, one of which may be hidden entirely, and there -inf can go
wrong, as these tests say.

B batch, H query heads, G key heads, T query tokens, S key tokens, D head dim.

Source: Gaudi PyTorch bridge 1.24.0, hpex/kernels/FusedSDPA.py;
tests/pytest_working/any_mode/FusedSDPA/test_hpu_sdpa.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lightning_gaudi._core import vendor
from lightning_gaudi._core.precision import autocast_ops

NAME = "gaudi_fused_sdpa"
"""Its name for models of transformers (`attn_implementation`)."""

_IS_AUTOCAST = autocast_ops.lowers("scaled_dot_product_attention")
"""Whether autocast lowers attention; read once, as the vendor's package reads its lists once."""

_differentiable_once: dict[type, type] = {}


def fused_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Computes `F.scaled_dot_product_attention` by the fused kernel, whatever the switch says.

    Args:
        query: (B, H, T, D) or (B, T, D), on the HPU, which is no first Gaudi; float32 or bfloat16.
        key: (B, G, S, D) or (B, S, D), of that dtype.
        value: (B, G, S, D) or (B, S, D), of that dtype.
        attn_mask: Broadcasts to (B, H, T, S): booleans, True where to attend, or numbers that are
            added to the scores. A query that may attend to nothing gets zeros.
        dropout_p: Dropout's probability; 0 in evaluation.
        is_causal: Whether a query sees no later key; not with `attn_mask`.
        scale: Multiplies the scores; 1 / sqrt(D) by default.
        enable_gqa: Whether G may divide H.

    Returns:
        (B, H, T, D) or (B, T, D).

    Raises:
        ValueError: The kernel cannot compute this.
    """
    tensors = (query, key, value)
    reason = why_not_fused(tensors, attn_mask, enable_gqa, dtype_for(query))
    if query.device.type != "hpu":
        reason = f"the queries are on {query.device}, and not on the HPU"
    if reason is None and is_torchs_to_answer(tensors, attn_mask, dropout_p, is_causal):
        reason = (
            "it takes float32 or bfloat16, the same for all, tensors that are not empty, "
            "0 <= dropout_p < 1, and a mask on the HPU or is_causal=True, but not both"
        )
    if reason is not None:
        raise ValueError(
            f"fused_sdpa cannot compute this: {reason}. Call F.scaled_dot_product_attention."
        )
    return attend(query, key, value, attn_mask, dropout_p, is_causal, scale)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    zeros_if_hidden: bool = True,
) -> Tensor:
    """Computes what `fused_sdpa` computes, without its checks.

    `zeros_if_hidden=False` is for transformers' masks: a query that may attend to nothing attends
    to all keys alike, and numbers are `finite` already.
    """
    dtype = dtype_for(query)
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    num_queries, num_keys = query.shape[-2], key.shape[-2]
    hidden = None
    if is_causal and num_queries != num_keys:
        # It is not documented where the kernel's triangle begins then; torch's begins top left.
        attn_mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query.device).tril()
        is_causal = zeros_if_hidden = False
    if attn_mask is not None:
        attn_mask, hidden = _additive(attn_mask, query, zeros_if_hidden)
    # The argument softmax_mode keeps its default "None", the precise one. What is recomputed in
    # backward is the user's choice, by torch.hpu.sdp_kernel.
    out: Tensor = _kernel().apply(query, key, value, attn_mask, dropout_p, is_causal, scale)
    return out if hidden is None else out.masked_fill(hidden, 0.0)


def dtype_for(query: Tensor) -> torch.dtype:
    """Returns the dtype that the kernel computes in: autocast's, or that of the queries."""
    if query.device.type == "hpu" and torch.is_autocast_enabled("hpu") and _IS_AUTOCAST:
        return torch.get_autocast_dtype("hpu")
    return query.dtype


def lowest(dtype: torch.dtype) -> float:
    """Returns a number that hides a key, and stays finite when a score is added to it."""
    return torch.finfo(dtype).min / 2


def finite(mask: Tensor, query: Tensor) -> Tensor:
    """Returns an additive mask as finite numbers of the kernel's dtype."""
    dtype = dtype_for(query)
    return mask.to(dtype).clamp(min=lowest(dtype))


def _additive(mask: Tensor, query: Tensor, find_hidden: bool) -> tuple[Tensor, Tensor | None]:
    """Returns the mask for the kernel, and which queries it hides from all keys."""
    mask = mask[(None,) * (query.dim() - mask.dim())]
    least = lowest(query.dtype)
    hides = None
    if mask.dtype == torch.bool:
        hides = mask.logical_not()
        added = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(hides, least)
    else:
        added = finite(mask, query) if find_hidden else mask.to(query.dtype)
        hides = mask == -torch.inf if find_hidden else None
    # The vendor's own code expands a mask without a batch, too.
    added = added.expand(query.shape[0], *added.shape[1:])
    return added, hides.all(-1, keepdim=True) if find_hidden and hides is not None else None


def _kernel() -> Any:
    kernel = vendor.fused_sdpa()
    # In compiled code torch itself refuses a second derivative.
    return kernel if torch.compiler.is_compiling() else _once(kernel)


def _once(kernel: type) -> type:
    """Returns the kernel with a backward pass that refuses to be differentiated.

    Autograd would take the vendor's for a constant, and a gradient penalty would be silently wrong.
    """
    if kernel not in _differentiable_once:

        class FusedSDPA(kernel):  # type: ignore[misc]
            @staticmethod
            def backward(ctx: Any, *gradients: Tensor) -> Any:
                if torch.is_grad_enabled():
                    raise RuntimeError(
                        "Fused attention has no second derivative, and backward or grad was called "
                        "with create_graph=True. Run the forward pass in "
                        "lightning_gaudi.attention.fused_attention(False), or set "
                        "LIGHTNING_GAUDI_FUSED_ATTENTION=0."
                    )
                return kernel.backward(ctx, *gradients)  # type: ignore[attr-defined]

        _differentiable_once[kernel] = FusedSDPA
    return _differentiable_once[kernel]


_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_OF_THE_KERNEL = (torch.float32, torch.bfloat16)


def is_torchs_to_answer(
    tensors: tuple[Tensor, Tensor, Tensor],
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
) -> bool:
    """Returns whether torch should handle the arguments, to refuse them or since they are empty."""
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
    """Returns the reason why the kernel cannot compute this, or None.

    Args:
        tensors: Queries (B, H, T, D), keys (B, G, S, D) and values (B, G, S, D), or all without
            heads: (B, T, D).
        attn_mask: Booleans, True where to attend, or numbers that are added to the scores.
        enable_gqa: Whether G may be less than H.
        dtype: The dtype to compute in: autocast's, or that of the queries.

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


# The driver cannot be asked inside of a compiled graph, and its answer never changes, so it is
# asked when the graph is traced. torch.compiler.assume_constant_result sets the same attribute (2.6
# to 2.13), but imports the compiler to do so.
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
