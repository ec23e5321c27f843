"""Applies rotary position embeddings by one operator.

B batch, H heads, T tokens, D head dim.

Source: Gaudi PyTorch bridge of 2025 (commit f186e3d) and 1.19, hpex.kernels.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch

from ...._missing import missing


class RotaryPosEmbeddingMode(Enum):
    """Which elements of the last dim are turned together."""

    BLOCKWISE = 0
    """Element i and element i + D/2."""
    PAIRWISE = 1
    """Element 2i and element 2i + 1."""


def match_data_types(
    input: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gives the three one dtype: fp32 if one of them has it, else the input's."""
    dtypes = (input.dtype, cos.dtype, sin.dtype)
    dtype = torch.float32 if torch.float32 in dtypes else input.dtype
    return input.to(dtype), cos.to(dtype), sin.to(dtype)


def apply_rotary_pos_emb(p: torch.Tensor, *args: Any) -> torch.Tensor:
    """Turns queries or keys by the angles of their positions.

    Called with `cos, sin, position_ids=None, offset=0, mode=BLOCKWISE` this has no gradient, as in
    the vendor's: train with the helpers V1 and V2. Called with a `rope_cache` it is V3, with one.

    Args:
        p: Queries or keys.
        args: `cos`, `sin`, and optionally `position_ids` (B, T), `offset` and `mode`; or
            `rope_cache`, of shape (T, D/2, 2) with cosines and sines in its last dim.

    Returns:
        Shape of `p`; fp32 if one of the tensors is, else its dtype.
    """
    if len(args) == 1:
        return RotaryPosEmbeddingHelperV3.apply(p, *args)
    cos, sin, position_ids, offset, mode = (
        *args,
        *(None, 0, RotaryPosEmbeddingMode.BLOCKWISE)[len(args) - 2 :],
    )
    p, cos, sin = match_data_types(p, cos, sin)
    return torch.ops.hpu.rotary_pos_embedding(p, sin, cos, position_ids, offset, mode.value)


def apply_rotary_pos_emb_bwd(
    p_grad_in: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    position_ids: torch.Tensor | None = None,
    offset: int = 0,
    mode: RotaryPosEmbeddingMode = RotaryPosEmbeddingMode.BLOCKWISE,
) -> torch.Tensor:
    """Returns the gradient of `apply_rotary_pos_emb` for `p`, given the output's."""
    grad, cos, sin = match_data_types(p_grad_in, cos, sin)
    return torch.ops.hpu.rotary_pos_embedding_backward(
        grad, sin, cos, position_ids, offset, mode.value
    )


class RotaryPosEmbeddingHelperV1(torch.autograd.Function):
    """Blockwise, with tables of a row for every token; call `apply(p, cos, sin, offset)`."""

    @staticmethod
    def forward(
        ctx: Any, p: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, offset: int
    ) -> torch.Tensor:
        """Turns `p` by tables that broadcast to it, taken from `offset` of their last dim."""
        ctx.save_for_backward(cos, sin)
        ctx.offset = offset
        return apply_rotary_pos_emb(p, cos, sin, None, offset)

    @staticmethod
    def backward(ctx: Any, p_grad_in: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Returns the gradient of `p`; the tables get none."""
        cos, sin = ctx.saved_tensors
        return apply_rotary_pos_emb_bwd(p_grad_in, cos, sin, None, ctx.offset), None, None, None


class RotaryPosEmbeddingHelperV2(torch.autograd.Function):
    """Blockwise, with tables of positions; call `apply(p, cos, sin, position_ids)`."""

    @staticmethod
    def forward(
        ctx: Any,
        p: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        position_ids: torch.Tensor,
    ) -> torch.Tensor:
        """Turns `p` (B, H, T, D) by tables (1, 1, positions, D) at `position_ids` (B, T)."""
        ctx.save_for_backward(cos, sin, position_ids)
        return apply_rotary_pos_emb(p, cos, sin, position_ids)

    @staticmethod
    def backward(ctx: Any, p_grad_in: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Returns the gradient of `p`; the tables get none."""
        cos, sin, position_ids = ctx.saved_tensors
        return apply_rotary_pos_emb_bwd(p_grad_in, cos, sin, position_ids), None, None, None


def parse_rope_cache(
    p: torch.Tensor, rope_cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Splits `p` (T, B, H, D) into what is turned and the rest, and the cache into tables.

    Returns:
        The elements that are turned (T, B, H, R), the rest (T, B, H, D - R), sines and cosines
        (T, B or 1, 1, R), where R is twice the cache's last dim but one.
    """
    num_tokens, _, num_heads, _ = p.shape
    rotary = rope_cache.shape[-2] * 2
    turned, rest = p[..., :rotary], p[..., rotary:]
    cache = rope_cache[:num_tokens].reshape(num_tokens, -1, 1, rotary // 2, 2)
    cos, sin = (table.repeat_interleave(2, -1).to(p.dtype) for table in cache.unbind(-1))
    return turned.reshape(num_tokens, -1, num_heads, rotary), rest, sin, cos


class RotaryPosEmbeddingHelperV3(torch.autograd.Function):
    """Pairwise, with cosines and sines in one tensor; call `apply(p, rope_cache)`."""

    @staticmethod
    def forward(ctx: Any, p: torch.Tensor, rope_cache: torch.Tensor) -> torch.Tensor:
        """Turns the first elements of `p` (T, B, H, D), as many as the cache has angles for."""
        turned, rest, sin, cos = parse_rope_cache(p, rope_cache)
        ctx.save_for_backward(rope_cache)
        mode = RotaryPosEmbeddingMode.PAIRWISE.value
        result = torch.ops.hpu.rotary_pos_embedding(turned, sin, cos, None, 0, mode)
        return torch.cat((result, rest), -1) if rest.shape[-1] else result

    @staticmethod
    def backward(ctx: Any, p_grad_in: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Returns the gradient of `p`; the cache gets none."""
        (rope_cache,) = ctx.saved_tensors
        turned, rest, sin, cos = parse_rope_cache(p_grad_in, rope_cache)
        mode = RotaryPosEmbeddingMode.PAIRWISE
        grad = apply_rotary_pos_emb_bwd(turned, cos, sin, None, 0, mode)
        return torch.cat((grad, rest), -1) if rest.shape[-1] else grad, None


__getattr__ = missing(__name__)
