"""Applies rotary position embeddings.

B batch, H heads, T tokens, D head dim.
"""

from __future__ import annotations

import torch

from ._library import operator

_BLOCKWISE, _PAIRWISE = 0, 1
_REST = "Tensor sin, Tensor cos, Tensor? position_ids, int offset, int mode) -> Tensor"


def _rotated(x: torch.Tensor, mode: int) -> torch.Tensor:
    """Returns a quarter turn: of the two halves of the last dim, or of each pair of neighbours."""
    if mode == _BLOCKWISE:
        first, second = x.chunk(2, -1)
        return torch.cat((-second, first), -1)
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def _table(
    table: torch.Tensor, like: torch.Tensor, position_ids: torch.Tensor | None, offset: int
) -> torch.Tensor:
    """Returns the cosines or sines of every token, in a shape that broadcasts to that of `like`."""
    if position_ids is None:
        return table[..., offset : offset + like.shape[-1]]
    if table.shape[:-2].numel() != 1:
        raise ValueError(
            f"cos and sin of shape {tuple(table.shape)} do not go with position_ids. Pass them "
            "as (1, 1, positions, head dim)."
        )
    return table.reshape(table.shape[-2:])[position_ids].unsqueeze(1)


def _check(x: torch.Tensor, position_ids: torch.Tensor | None, offset: int, mode: int) -> None:
    if mode not in (_BLOCKWISE, _PAIRWISE):
        raise ValueError(f"mode={mode} is neither 0 (blockwise) nor 1 (pairwise).")
    if x.shape[-1] % 2:
        raise ValueError(f"The last dim has {x.shape[-1]} elements; a rotation needs pairs.")
    if (mode == _PAIRWISE or position_ids is not None) and offset:
        raise ValueError(f"offset={offset} is for mode BLOCKWISE without position_ids. Pass 0.")
    if mode == _PAIRWISE and position_ids is not None:
        raise ValueError("position_ids are for mode BLOCKWISE. Pass None.")


def _fake(x: torch.Tensor, *args: object) -> torch.Tensor:
    return x.new_empty(x.shape)


@operator("rotary_pos_embedding(Tensor input, " + _REST, fake=_fake)
def rotary_pos_embedding(
    input: torch.Tensor,
    sin: torch.Tensor,
    cos: torch.Tensor,
    position_ids: torch.Tensor | None,
    offset: int,
    mode: int,
) -> torch.Tensor:
    """Turns pairs of elements by each token's angles: `x * cos + turned(x) * sin`.

    Args:
        input: Shape (..., D); (B, H, T, D) with `position_ids`.
        sin: Sines, in a shape that broadcasts; (1, 1, positions, D) with `position_ids`.
        cos: Cosines, likewise.
        position_ids: Each token's position, of shape (B, T).
        offset: Where in the last dim of `sin` and `cos` to begin.
        mode: 0 pairs the halves of the last dim, 1 pairs neighbours.

    Returns:
        Shape and dtype of `input`; computed in fp32.
    """
    _check(input, position_ids, offset, mode)
    x = input.float()
    cosines = _table(cos, input, position_ids, offset).float()
    sines = _table(sin, input, position_ids, offset).float()
    return (x * cosines + _rotated(x, mode) * sines).to(input.dtype)


@operator("rotary_pos_embedding_backward(Tensor grad_in, " + _REST, fake=_fake)
def rotary_pos_embedding_backward(
    grad_in: torch.Tensor,
    sin: torch.Tensor,
    cos: torch.Tensor,
    position_ids: torch.Tensor | None,
    offset: int,
    mode: int,
) -> torch.Tensor:
    """Returns the gradient of `rotary_pos_embedding` for its input: the turn back."""
    _check(grad_in, position_ids, offset, mode)
    grad = grad_in.float()
    cosines = _table(cos, grad_in, position_ids, offset).float()
    sines = _table(sin, grad_in, position_ids, offset).float()
    return (grad * cosines - _rotated(grad * sines, mode)).to(grad_in.dtype)
