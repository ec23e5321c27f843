"""Computes the softmax of parts of a row, of scaled and of masked rows.

T query tokens, S key tokens.
"""

from __future__ import annotations

import torch

from ._library import operator
from .attention_masks import exp_, softmax_with_sink

_FLAVORS = (0, 1, 2)


def _same(x: torch.Tensor, *args: object) -> torch.Tensor:
    return x.new_empty(x.shape)


@operator("custom_softmax(Tensor input, int flavor) -> Tensor", fake=_same)
def custom_softmax(input: torch.Tensor, flavor: int) -> torch.Tensor:
    """Returns the softmax of the last dim; every flavor exact here, computed in fp32.

    Args:
        input: bf16, of any shape.
        flavor: How a card computes it: 0 exactly, 1 with a faster exponential and reciprocal,
            2 also without subtracting the largest element.

    Raises:
        ValueError: The dtype is another one, or there is no such flavor.
    """
    if input.dtype != torch.bfloat16:
        raise ValueError(f"CustomSoftmax takes bfloat16, got {input.dtype}. Cast it first.")
    if flavor not in _FLAVORS:
        raise ValueError(f"flavor={flavor} is none of {_FLAVORS}.")
    return input.float().softmax(-1).to(input.dtype)


@operator("ragged_softmax(Tensor self, int dim, bool half_to_float, Tensor valid_count) -> Tensor",
          fake=_same)  # fmt: skip
def ragged_softmax(
    self: torch.Tensor, dim: int, half_to_float: bool, valid_count: torch.Tensor
) -> torch.Tensor:
    """Returns the softmax of the first elements of each row, and 0 after them.

    Args:
        self: Shape (rows, ..., S).
        dim: The last one.
        half_to_float: False.
        valid_count: How many elements of each row count, of shape (rows,).

    Raises:
        NotImplementedError: Another dim, or `half_to_float`.
    """
    if dim not in (-1, self.dim() - 1) or half_to_float:
        raise NotImplementedError(
            f"hpu::ragged_softmax takes the last dim and no half_to_float on the simulated HPU, "
            f"got dim={dim}, half_to_float={half_to_float}."
        )
    columns = torch.arange(self.shape[-1], device=self.device)
    counts = valid_count.reshape(-1, *[1] * (self.dim() - 1))
    outside = columns >= counts
    scores = self.float().masked_fill(outside, float("-inf"))
    return scores.softmax(-1).masked_fill(outside, 0.0).to(self.dtype)


@operator("scaled_masked_softmax(Tensor input, Tensor mask, float scale) -> Tensor", fake=_same)
def scaled_masked_softmax(
    input: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Returns the softmax of `input * scale + mask` along the last dim, computed in fp32."""
    return (input.float() * scale + mask.float()).softmax(-1).to(input.dtype)


def _causal(scores: torch.Tensor, scale: float) -> torch.Tensor:
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return (scores.float() * scale).masked_fill(future, float("-inf"))


@operator(
    "scaled_triangular_softmax(Tensor self, float inv_scale_attn, Tensor? exp_sum_recpr=None, "
    "Tensor? max=None) -> Tensor",
    fake=_same,
)
def scaled_triangular_softmax(
    self: torch.Tensor,
    inv_scale_attn: float,
    exp_sum_recpr: torch.Tensor | None = None,
    max: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns the softmax of scaled scores of which a token sees no later one.

    Args:
        self: Scores, of shape (..., T, S).
        inv_scale_attn: Multiplies them.
        exp_sum_recpr: Each row's inverse sum of exponentials, if known, of shape (..., T, 1).
        max: Each row's largest score, if known, of shape (..., T, 1).
    """
    scores = _causal(self, inv_scale_attn)
    if exp_sum_recpr is None or max is None:
        return scores.softmax(-1).to(self.dtype)
    return exp_(scores - max.float()).mul_(exp_sum_recpr.float()).to(self.dtype)


def _retain_fake(
    scores: torch.Tensor, inv_scale_attn: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = (*scores.shape[:-1], 1)
    sums, largest = (scores.new_empty(rows, dtype=torch.float32) for _ in range(2))
    return scores.new_empty(scores.shape), sums, largest


@operator(
    "scaled_triangular_softmax_retain(Tensor self, float inv_scale_attn) -> "
    "(Tensor, Tensor, Tensor)",
    fake=_retain_fake,
)
def scaled_triangular_softmax_retain(
    self: torch.Tensor, inv_scale_attn: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns `scaled_triangular_softmax`, and what it takes to compute it again.

    Returns:
        Probabilities (..., T, S); inverse sums of exponentials and largest scores (..., T, 1),
        both in fp32.
    """
    scores = _causal(self, inv_scale_attn)
    probabilities, largest, inverse = softmax_with_sink(scores, None)
    return probabilities.to(self.dtype), inverse, largest
