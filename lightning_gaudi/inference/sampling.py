"""Draws the next token on the device from logits, the same one for a row in any batch.

Each row has a uniform random number for each of its tokens, drawn on the CPU from the row's seed.
The device finds the token into whose share of the probability that number falls.

B rows, N new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """Says how tokens are drawn; the settings mean what they mean in transformers.

    Raises:
        ValueError: A value is out of its range.
    """

    temperature: float = 1.0
    """Divides the logits; more than 0. For the likeliest token each time leave sampling out."""
    top_k: int | None = None
    """Keeps only the k likeliest tokens, and any as likely as the last of them; None keeps all."""
    top_p: float | None = None
    """Keeps only the likeliest tokens, as few as have this probability together, and those as
    likely as the last of them. It is more than 0 and at most 1; None keeps all. `top_k` comes
    first."""

    def __post_init__(self) -> None:
        """Checks the values."""
        if not 0 < self.temperature < float("inf"):
            raise ValueError(
                f"temperature={self.temperature!r} must be more than 0. For the likeliest token "
                "each time leave sampling out."
            )
        if self.top_k is not None and (self.top_k != int(self.top_k) or self.top_k < 1):
            raise ValueError(
                f"top_k={self.top_k!r} must be a whole number of at least 1, or None for all."
            )
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(
                f"top_p={self.top_p!r} must be more than 0 and at most 1, or None for all tokens."
            )


def draw_noise(seeds: Sequence[int], num_tokens: int) -> Tensor:
    """Draws [B, N] uniform float32 numbers on the CPU, each row by a generator of its own.

    The first numbers of a row are the same, however many are drawn.
    """
    rows = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        rows.append(torch.rand(num_tokens, generator=generator))
    return torch.stack(rows)


def greedy(logits: Tensor) -> Tensor:
    """Returns the likeliest token [B] of logits [B, V]."""
    return logits.argmax(-1)


def sample(
    logits: Tensor, noise: Tensor, temperature: Tensor, top_p: Tensor | None, top_k: int | None
) -> Tensor:
    """Draws a token of each row.

    Args:
        logits: [B, V] float32.
        noise: [B, 1] float32, at least 0 and less than 1.
        temperature: [1] float32.
        top_p: [1] float32, or None.
        top_k: See `Sampling`.

    Returns:
        [B] int64.
    """
    probabilities = kept_probabilities(logits, temperature, top_p, top_k)
    tokens = torch.arange(logits.shape[-1], device=logits.device)
    shares = probabilities.cumsum(-1)
    # In the order of the vocabulary. If they were sorted, two tokens with almost the same
    # probability could change places, since the last digits depend on the batch.
    is_beyond = (shares > noise * shares[:, -1:]) & (probabilities > 0)
    first = tokens.where(is_beyond, logits.shape[-1]).amin(-1)
    # A parallel scan need not ascend in its last digits, so the result is kept within the tokens
    # that have a probability.
    last = tokens.where(probabilities > 0, 0).amax(-1)
    return torch.minimum(first, last)


def kept_probabilities(
    logits: Tensor, temperature: Tensor, top_p: Tensor | None, top_k: int | None
) -> Tensor:
    """Returns probabilities [B, V] of logits, 0 for what `top_k` and `top_p` leave out."""
    logits = logits / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        weakest = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < weakest, -torch.inf)
    probabilities = logits.softmax(-1)
    if top_p is None:
        return probabilities
    ordered = probabilities.sort(dim=-1, descending=True).values
    # A token is kept if those before it do not have the probability yet. So the first always is.
    is_kept = ordered.cumsum(-1) - ordered < top_p
    weakest = ordered.where(is_kept, 1.0).amin(-1, keepdim=True)
    return probabilities.masked_fill(probabilities < weakest, 0.0)
