"""Computes losses over a vocabulary in chunks of tokens, to never hold all logits at once.

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
        hidden: the last hidden states, [N, D].
        labels: the labels, int64 [N]; tokens with -100 are left out.
        head: computes logits [n, V] from hidden states [n, D].
        num_chunks: the number of chunks that the tokens are divided into. Only one chunk has its
            logits at a time, and they are computed again in backward, which costs one more matrix
            product. 1 computes all logits at once, and keeps them.
    """
    # The number of chunks is given, rather than their size, so that a compiled graph has the same
    # number of steps whatever the batch.
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
        hidden: the last hidden states, [B, T, D].
        labels: the labels, int64 [B, T]; -100 where a token is no part of an answer.
        sequence_ids: the number of each token's document in its row, int64 [B, T], from 1.
        head: as in `chunked_cross_entropy`.
        num_chunks: likewise.
        max_documents: the largest number of documents of a row (K).
    """
    losses = _in_chunks(_each, hidden.flatten(0, 1), labels.flatten(), head, num_chunks)
    log_probabilities = -torch.cat([*losses]).view_as(labels)
    numbers = torch.arange(1, max_documents + 1, device=labels.device)
    is_of = sequence_ids[:, None, :] == numbers[None, :, None]
    # `where`, because under autocast a Gaudi would multiply by the mask in bfloat16.
    return torch.where(is_of, log_probabilities[:, None, :], 0.0).sum(-1)


def preference_loss(
    policy: Tensor, reference: Tensor, sequence_ids: Tensor, beta: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns sums over the pairs of a batch: of the loss, of the pairs ranked right, of pairs.

    Args:
        policy: the log-probabilities of answers by the model that is trained, [B, K]; chosen and
            rejected answers alternate.
        reference: the same by the model before the training, [B, K].
        sequence_ids: the number of each token's answer in its row, int64 [B, T], from 1.
        beta: how strongly the model is held to the reference; a smaller one lets it go further.

    Returns:
        Three scalars, float32.

    Source: Rafailov et al., Direct Preference Optimization, 2023 (arXiv 2305.18290), equation 7.
    """
    gains = policy - reference
    margins = gains[:, 0::2] - gains[:, 1::2]
    chosen = torch.arange(1, policy.shape[1] + 1, 2, device=policy.device)
    # A row may hold fewer answers than K; what is computed for the missing ones is left out.
    is_pair = sequence_ids.amax(1, keepdim=True) >= chosen
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
    """Yields the result for each chunk of tokens, without keeping its logits for backward."""
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
