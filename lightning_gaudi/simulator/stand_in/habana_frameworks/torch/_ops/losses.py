"""Computes the CTC loss.

T input tokens, N batch, C classes, S target tokens.
"""

from __future__ import annotations

import torch

from ._library import operator

_MEAN, _SUM = 1, 2


def _negative_log_likelihood(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    lengths: tuple[torch.Tensor, torch.Tensor],
    blank: int,
    zero_infinity: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, labels = (length.long() for length in lengths)
    return torch.ops.aten._ctc_loss.Tensor(
        log_probs.float(), targets.long(), inputs, labels, blank, zero_infinity
    )


def _fake(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int,
    reduction: int,
    zero_infinity: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    num_samples = log_probs.shape[1] if log_probs.dim() > 2 else 1
    loss = log_probs.new_empty(() if reduction else (num_samples,))
    alpha_shape = (log_probs.shape[0], num_samples, 2 * targets.shape[-1] + 1)
    return loss, log_probs.new_empty(alpha_shape)


@operator(
    "ctc_loss_custom(Tensor log_probs, Tensor targets, Tensor input_lengths, "
    "Tensor target_lengths, int blank, int reduction, bool zero_infinity) -> (Tensor, Tensor)",
    fake=_fake,
)
def ctc_loss_custom(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int,
    reduction: int,
    zero_infinity: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns minus the log likelihood of the targets, over all alignments.

    Args:
        log_probs: Shape (T, N, C) or (T, C).
        targets: Shape (N, S), or all in a row.
        input_lengths: Shape (N,).
        target_lengths: Shape (N,).
        blank: The class that is no token.
        reduction: 0 none, 1 mean of each sample's loss by its target's length, 2 sum.
        zero_infinity: Whether an impossible target counts as 0.

    Returns:
        The loss, of shape () or (N,), and the log probabilities of the targets' beginnings, of
        shape (T, N, states).
    """
    loss, log_alpha = _negative_log_likelihood(
        log_probs, targets, (input_lengths, target_lengths), blank, zero_infinity
    )
    if zero_infinity:
        loss = torch.where(loss.isinf(), torch.zeros_like(loss), loss)
    if reduction == _MEAN:
        loss = (loss / target_lengths.clamp(min=1)).mean()
    elif reduction == _SUM:
        loss = loss.sum()
    alpha = log_alpha.unsqueeze(0) if log_alpha.dim() == 2 else log_alpha
    return loss.to(log_probs.dtype), alpha.transpose(0, 1).contiguous().to(log_probs.dtype)


@operator(
    "ctc_loss_custom_backward(Tensor grad, Tensor log_probs, Tensor targets, "
    "Tensor input_lengths, Tensor target_lengths, Tensor neg_log_likelihood, Tensor log_alpha, "
    "int blank, int reduction, bool zero_infinity) -> Tensor",
    fake=lambda grad, log_probs, *args: log_probs.new_empty(log_probs.shape),
)
def ctc_loss_custom_backward(
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    neg_log_likelihood: torch.Tensor,
    log_alpha: torch.Tensor,
    blank: int,
    reduction: int,
    zero_infinity: bool,
) -> torch.Tensor:
    """Returns the gradient of `ctc_loss_custom` for `log_probs`, from its arguments and results."""
    # The losses of the samples are computed again, because a reduced loss no longer has them.
    loss, alpha = _negative_log_likelihood(
        log_probs, targets, (input_lengths, target_lengths), blank, zero_infinity
    )
    grads = grad.float().expand(loss.shape)
    if reduction == _MEAN:
        grads = grads / (target_lengths.clamp(min=1) * target_lengths.numel())
    result = torch.ops.aten._ctc_loss_backward.Tensor(
        grads.contiguous(), log_probs.float(), targets.long(), input_lengths.long(),
        target_lengths.long(), loss, alpha, blank, zero_infinity,
    )  # fmt: skip
    return result.to(log_probs.dtype)
