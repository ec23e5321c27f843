"""Reshapes attention's inputs where there are fewer key heads than query heads.

B batch, H query heads, G key heads, R = H / G, T query tokens, S key tokens, D head dim.
"""

from __future__ import annotations

import torch


def is_gqa(q: torch.Tensor, k: torch.Tensor) -> bool:
    """Returns whether several query heads share a key head, and there are several of those."""
    return q.dim() == 4 and k.shape[1] not in (1, q.shape[1])


def gqa_input_reshape_fwd(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attention_mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Gives grouped queries a dim of their own: q (B, G, R, T, D), k and v (B, G, 1, S, D).

    Inputs without groups come back as they are.

    Raises:
        ValueError: The number of query heads is no multiple of that of key heads.
    """
    if not is_gqa(q, k):
        return q, k, v, attention_mask
    groups = k.shape[1]
    if q.shape[1] % groups:
        raise ValueError(
            f"FusedSDPA got {q.shape[1]} query heads and {groups} key heads. "
            "The number of query heads must be a multiple of that of key heads."
        )
    mask = attention_mask
    if mask is not None:
        per_head = mask.shape[1] == q.shape[1]
        mask = mask.unflatten(1, (groups, -1)) if per_head else mask.unsqueeze(1)
    return q.unflatten(1, (groups, -1)), k.unsqueeze(2), v.unsqueeze(2), mask


def gqa_input_reshape_bwd(q: torch.Tensor, v: torch.Tensor, grad_in: torch.Tensor) -> torch.Tensor:
    """Reshapes the output's gradient (B, H, T, D) to that of grouped queries (B, G, R, T, D)."""
    return grad_in.reshape((*q.shape[:4], v.shape[-1]))


def gqa_output_reshape(tensor: torch.Tensor) -> torch.Tensor:
    """Puts groups (B, G, R, T, D) back into heads (B, H, T, D)."""
    return tensor.flatten(1, 2)
