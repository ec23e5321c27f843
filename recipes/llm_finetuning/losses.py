"""Losses over a vocabulary in parts, so that not all logits are there at a time.

Shapes: N tokens, B rows, T tokens of a row, K documents of a row, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
    first, *others = _in_chunks(_sum, hidden, labels, head, num_chunks)
    return sum(others, first)


def answer_log_probabilities(
    hidden: Tensor,
    labels: Tensor,
    sequence_ids: Tensor,
    head: Callable[[Tensor], Tensor],
    num_chunks: int,
    max_documents: int,
) -> Tensor:
    """Returns the log-probability of each document's answer, float32 [B, K].

    Args:
        hidden: [B, T, D].
        labels: [B, T], int64; -100 is no part of an answer.
        sequence_ids: [B, T], int64, from 1: which document of its row a token is of.
        head: as in `chunked_cross_entropy`.
        num_chunks: likewise.
        max_documents: of a row (K).
    """
    losses = _in_chunks(_each, hidden.flatten(0, 1), labels.flatten(), head, num_chunks)
    log_probabilities = -torch.cat([*losses]).view_as(labels)
    numbers = torch.arange(1, max_documents + 1, device=labels.device)
    is_of = sequence_ids[:, None, :] == numbers[None, :, None]
    # Selected, and not multiplied by the mask: under autocast a Gaudi multiplies in bfloat16, and
    # adds up what is left.
    return torch.where(is_of, log_probabilities[:, None, :], 0.0).sum(-1)


def preference_loss(
    policy: Tensor, reference: Tensor, sequence_ids: Tensor, beta: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns sums over the pairs of a batch: loss, right ones, and how many there are; float32.

    Args:
        policy: [B, K], log-probabilities by the model that is trained: chosen and rejected answers
            in turn.
        reference: [B, K], likewise by the model before.
        sequence_ids: [B, T], int64: which of its row's answers a token is of, from 1.
        beta: how far the model may go from the reference: less lets it go further.

    Source: Rafailov et al., Direct Preference Optimization, 2023 (arXiv 2305.18290), equation 7.
    """
    gains = policy - reference
    margins = gains[:, 0::2] - gains[:, 1::2]
    chosen = torch.arange(1, policy.shape[1] + 1, 2, device=policy.device)
    is_pair = sequence_ids.amax(1, keepdim=True) >= chosen  # the others are places that are free
    with torch.autocast(policy.device.type, enabled=False):  # a Gaudi's would scale in bfloat16
        losses = torch.where(is_pair, -F.logsigmoid(beta * margins), 0.0)
    is_right = (margins > 0) & is_pair
    return losses.sum(), is_right.sum().float(), is_pair.sum().float()


def _in_chunks(
    compute: Callable[..., Tensor],
    hidden: Tensor,
    labels: Tensor,
    head: Callable[[Tensor], Tensor],
    num_chunks: int,
) -> Iterator[Tensor]:
    """Yields what is computed of each part of the tokens, whose logits are not kept."""
    keeps = num_chunks == 1 or not torch.is_grad_enabled()
    for part, of_part in zip(hidden.chunk(num_chunks), labels.chunk(num_chunks), strict=True):
        if keeps:
            yield compute(part, of_part, head)
        else:
            yield checkpoint(compute, part, of_part, head, use_reentrant=False)


def _each(hidden: Tensor, labels: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
    return F.cross_entropy(head(hidden).float(), labels, ignore_index=-100, reduction="none")


def _sum(hidden: Tensor, labels: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
    return F.cross_entropy(head(hidden).float(), labels, ignore_index=-100, reduction="sum")
