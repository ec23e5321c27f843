"""The loss of a vocabulary in parts, so that not all logits are there at a time.

Shapes: N tokens, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint


def chunked_cross_entropy(
    hidden: Tensor, labels: Tensor, head: Callable[[Tensor], Tensor], num_chunks: int
) -> Tensor:
    """Returns the sum of the cross-entropies of tokens, float32.

    Args:
        hidden: [N, D], what the head makes logits of.
        labels: [N], int64; -100 is left out.
        head: makes logits [n, V] of hidden states [n, D].
        num_chunks: parts of the tokens, of which one has its logits at a time; they are computed
            again in backward, which costs one product of matrices more. 1 computes all at once,
            and keeps them. A number of parts, and not of tokens: what is compiled has as many
            steps, whatever the batch.
    """
    if num_chunks == 1:
        return _sum(hidden, labels, head)
    total = hidden.new_zeros((), dtype=torch.float32)
    parts = zip(hidden.chunk(num_chunks), labels.chunk(num_chunks), strict=True)
    for part, of_part in parts:
        if torch.is_grad_enabled():
            total = total + checkpoint(_sum, part, of_part, head, use_reentrant=False)
        else:
            total = total + _sum(part, of_part, head)
    return total


def _sum(hidden: Tensor, labels: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
    return F.cross_entropy(head(hidden).float(), labels, ignore_index=-100, reduction="sum")
