"""Updates lists of tensors as AdamW and LAMB do."""

from __future__ import annotations

import torch

from ..utils.internal import is_lazy
from ._library import check_tensors, operator
from .normalization import global_norm

Tensors = list[torch.Tensor]

_ADAMW_LISTS = (
    "optimizer_adamw(Tensor[] gradient_vec, Tensor(a!)[] weight_vec, Tensor(b!)[] exp_avg_vec, "
    "Tensor(c!)[] exp_avg_sq_vec, Tensor neg_step_t, float beta1, float beta2, float epsilon, "
)
_ADAMW_SCALES = "Tensor(d!)[]? exp_avg_scales=None, Tensor(e!)[]? exp_avg_sq_scales=None) -> ()"


def _adamw(
    gradients: Tensors,
    weights: Tensors,
    exp_avgs: Tensors,
    exp_avg_sqs: Tensors,
    neg_step: torch.Tensor,
    betas: tuple[float, float],
    epsilon: float,
    decay: torch.Tensor | float | None,
) -> None:
    """Updates weights in place: `w = w * decay + neg_step * m / (sqrt(v) + epsilon)`.

    m and v are the running averages of the gradient and of its square, not corrected: the bias
    correction is in `neg_step`. Computed in the wider dtype of gradient and average.
    """
    check_tensors(
        "optimizer_adamw",
        gradient_vec=gradients,
        weight_vec=weights,
        exp_avg_vec=exp_avgs,
        exp_avg_sq_vec=exp_avg_sqs,
    )
    beta1, beta2 = betas
    neg_step = neg_step.reshape(())
    decay = decay.reshape(()) if isinstance(decay, torch.Tensor) else decay
    for gradient, weight, exp_avg, exp_avg_sq in zip(
        gradients, weights, exp_avgs, exp_avg_sqs, strict=True
    ):
        dtype = torch.promote_types(gradient.dtype, exp_avg.dtype)
        g = gradient.to(dtype)
        m = exp_avg.to(dtype) * beta1 + g * (1.0 - beta1)
        v = exp_avg_sq.to(dtype) * beta2 + g * g * (1.0 - beta2)
        step = m / (v.sqrt() + epsilon) * neg_step.to(dtype)
        exp_avg.copy_(m)
        exp_avg_sq.copy_(v)
        weight.copy_((weight if decay is None else weight * decay) + step)


def _refuse_scales(scales: Tensors | None, sq_scales: Tensors | None) -> None:
    if scales is not None or sq_scales is not None:
        raise NotImplementedError(
            "hpu::optimizer_adamw with moments in fp8 (exp_avg_scales) is not available on the "
            "simulated HPU. Leave moments_dtype at None or a wider dtype."
        )


if is_lazy():

    @operator(_ADAMW_LISTS + "float weight_decay, " + _ADAMW_SCALES)
    def optimizer_adamw(
        gradient_vec: Tensors,
        weight_vec: Tensors,
        exp_avg_vec: Tensors,
        exp_avg_sq_vec: Tensors,
        neg_step_t: torch.Tensor,
        beta1: float,
        beta2: float,
        epsilon: float,
        weight_decay: float,
        exp_avg_scales: Tensors | None = None,
        exp_avg_sq_scales: Tensors | None = None,
    ) -> None:
        """Updates by AdamW (see `_adamw`); `weight_decay` is the factor 1 - decay * lr."""
        _refuse_scales(exp_avg_scales, exp_avg_sq_scales)
        decay = None if weight_decay == 1.0 else weight_decay
        lists = (gradient_vec, weight_vec, exp_avg_vec, exp_avg_sq_vec)
        _adamw(*lists, neg_step_t, (beta1, beta2), epsilon, decay)

else:

    @operator(_ADAMW_LISTS + "Tensor weight_decay, bool has_weight_decay, " + _ADAMW_SCALES)
    def optimizer_adamw(
        gradient_vec: Tensors,
        weight_vec: Tensors,
        exp_avg_vec: Tensors,
        exp_avg_sq_vec: Tensors,
        neg_step_t: torch.Tensor,
        beta1: float,
        beta2: float,
        epsilon: float,
        weight_decay: torch.Tensor,
        has_weight_decay: bool,
        exp_avg_scales: Tensors | None = None,
        exp_avg_sq_scales: Tensors | None = None,
    ) -> None:
        """Updates by AdamW (see `_adamw`); `weight_decay` is 1 - decay * lr, of shape (1,)."""
        _refuse_scales(exp_avg_scales, exp_avg_sq_scales)
        decay = weight_decay if has_weight_decay else None
        lists = (gradient_vec, weight_vec, exp_avg_vec, exp_avg_sq_vec)
        _adamw(*lists, neg_step_t, (beta1, beta2), epsilon, decay)


@operator(
    "optimizer_lamb_fused_norm(Tensor[] grad, float max_norm) -> Tensor",
    fake=lambda grad, max_norm: grad[0].new_empty(1),
)
def optimizer_lamb_fused_norm(grad: Tensors, max_norm: float) -> torch.Tensor:
    """Returns what to divide the gradients by: norm / max_norm, and 1 within `max_norm`.

    Args:
        grad: All gradients.
        max_norm: The largest global norm.

    Returns:
        The divisor, of shape (1,).
    """
    check_tensors("optimizer_lamb_fused_norm", grad=grad)
    return (global_norm(grad) / max_norm).clamp(min=1.0)


@operator(
    "optimizer_lamb_phase1(Tensor[] gradients, Tensor[] weights, Tensor(a!)[] exp_avg, "
    "Tensor(b!)[] exp_avg_sq, Tensor(c!)[] out_weight_norms, Tensor(d!)[] out_adam_norms, "
    "Tensor(e!)[] out_adam_steps, Tensor clip_global_grad_norm, int grad_averaging, float beta1, "
    "float beta2, float epsilon, Tensor bias_correction1, Tensor bias_correction2, "
    "float weight_decay) -> ()"
)
def optimizer_lamb_phase1(
    gradients: Tensors,
    weights: Tensors,
    exp_avg: Tensors,
    exp_avg_sq: Tensors,
    out_weight_norms: Tensors,
    out_adam_norms: Tensors,
    out_adam_steps: Tensors,
    clip_global_grad_norm: torch.Tensor,
    grad_averaging: int,
    beta1: float,
    beta2: float,
    epsilon: float,
    bias_correction1: torch.Tensor,
    bias_correction2: torch.Tensor,
    weight_decay: float,
) -> None:
    """Computes LAMB's direction, and norms.

    The direction is `(m / c1) / (sqrt(v / c2) + epsilon) + weight_decay * w`.

    m and v are the running averages of the clipped gradient and of its square, with corrections
    c1 and c2; without gradient averaging the gradient enters m with factor 1. Writes the averages,
    the direction and the norms of weight and direction, of shape (1,).
    """
    check_tensors("optimizer_lamb_phase1", gradients=gradients, weights=weights, exp_avg=exp_avg)
    beta3 = 1.0 - beta1 if grad_averaging else 1.0
    for i, weight in enumerate(weights):
        gradient = gradients[i] / clip_global_grad_norm.reshape(())
        exp_avg[i].mul_(beta1).add_(gradient * beta3)
        exp_avg_sq[i].mul_(beta2).add_(gradient * gradient * (1.0 - beta2))
        denominator = (exp_avg_sq[i] / bias_correction2).sqrt() + epsilon
        direction = exp_avg[i] / bias_correction1 / denominator
        if weight_decay != 0:
            direction = direction + weight * weight_decay
        out_adam_steps[i].copy_(direction)
        out_weight_norms[i].copy_(torch.linalg.vector_norm(weight).reshape(1))
        out_adam_norms[i].copy_(torch.linalg.vector_norm(direction).reshape(1))


@operator(
    "optimizer_lamb_phase2(Tensor(a!)[] weights, Tensor[] adam_norms, Tensor[] weight_norms, "
    "Tensor[] adam_steps, Tensor neg_step, float wd, bool use_lamb) -> ()"
)
def optimizer_lamb_phase2(
    weights: Tensors,
    adam_norms: Tensors,
    weight_norms: Tensors,
    adam_steps: Tensors,
    neg_step: torch.Tensor,
    wd: float,
    use_lamb: bool,
) -> None:
    """Adds `neg_step * trust * direction` to the weights.

    The trust ratio is the weight's norm by the direction's if both are positive and the group has
    weight decay or `use_lamb`; else 1.
    """
    check_tensors("optimizer_lamb_phase2", weights=weights, adam_steps=adam_steps)
    for weight, adam_norm, weight_norm, step in zip(
        weights, adam_norms, weight_norms, adam_steps, strict=True
    ):
        update = step * neg_step
        if wd != 0 or use_lamb:
            has_norms = (adam_norm > 0) & (weight_norm > 0)
            trust = torch.where(has_norms, weight_norm / adam_norm, torch.ones_like(weight_norm))
            update = update * trust.reshape(())
        weight.add_(update)
