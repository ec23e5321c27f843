"""Updates lists of tensors by gradient descent.

The vendor's package has these as operators in eager mode; in lazy mode it reaches all of them but
`optimizer_resource_apply_momentum` through a private module of Python's. Here they are operators in
both modes.
"""

from __future__ import annotations

import torch

from ._library import check_tensors, device_kernel, operator

Tensors = list[torch.Tensor]


def _decayed(gradient: torch.Tensor, weight: torch.Tensor, weight_decay: float) -> torch.Tensor:
    """Returns `gradient + weight_decay * weight` in fp32."""
    return gradient.float() + weight.float() * weight_decay if weight_decay else gradient.float()


@operator(
    "optimizer_sgd(Tensor[] gradients, Tensor(a!)[] weights_in, Tensor(b!) learning_rate, "
    "float wd, float mom, float damp, bool nesterov) -> ()"
)
def optimizer_sgd(
    gradients: Tensors,
    weights_in: Tensors,
    learning_rate: torch.Tensor,
    wd: float,
    mom: float,
    damp: float,
    nesterov: bool,
) -> None:
    """Updates weights in place: `w = w - lr * (g + wd * w)`, computed in fp32.

    Raises:
        RuntimeError: A momentum is asked for, which needs buffers; or the lists do not fit.
    """
    check_tensors("optimizer_sgd", gradients=gradients, weights_in=weights_in)
    if mom != 0:
        raise RuntimeError(
            f"hpu::optimizer_sgd has no momentum buffers, got mom={mom}. "
            "Use hpu::optimizer_sgd_momentum."
        )
    learning_rate = learning_rate.reshape(())
    for gradient, weight in zip(gradients, weights_in, strict=True):
        weight.sub_(_decayed(gradient, weight, wd) * learning_rate)


@operator(
    "optimizer_sgd_momentum(Tensor[] gradients, Tensor(a!)[] weights_in, "
    "Tensor(b!)[] momentum_in, Tensor epoch_num, Tensor(c!) learning_rate, Tensor(d!) mom, "
    "float wd, float damp, bool nesterov) -> ()"
)
def optimizer_sgd_momentum(
    gradients: Tensors,
    weights_in: Tensors,
    momentum_in: Tensors,
    epoch_num: torch.Tensor,
    learning_rate: torch.Tensor,
    mom: torch.Tensor,
    wd: float,
    damp: float,
    nesterov: bool,
) -> None:
    """Updates weights and momentum buffers in place, computed in fp32.

    With `d = g + wd * w`: `m = mom * m + (1 - damp) * d`, or `m = d` where `epoch_num` is not zero;
    then `w = w - lr * m`, with `nesterov` `w = w - lr * (d + mom * m)`.

    Source: the kernel of the card is closed. That its fourth input marks the first step is in
    tpc_weight_update_test.cpp of HabanaAI/Intel_Gaudi3_Software; that zero marks every other, in
    the bridge's test of FusedSGD, which passes zero always and holds it to torch's SGD.
    """
    check_tensors(
        "optimizer_sgd_momentum",
        gradients=gradients,
        weights_in=weights_in,
        momentum_in=momentum_in,
    )
    is_first = epoch_num.reshape(()) != 0
    learning_rate, mom = learning_rate.reshape(()), mom.reshape(())
    for gradient, weight, buffer in zip(gradients, weights_in, momentum_in, strict=True):
        direction = _decayed(gradient, weight, wd)
        averaged = buffer.float() * mom + direction * (1.0 - damp)
        momentum = torch.where(is_first, direction, averaged)
        buffer.copy_(momentum)
        weight.sub_((direction + momentum * mom if nesterov else momentum) * learning_rate)


@device_kernel
def fused_adagrad(
    gradients: Tensors,
    weights: Tensors,
    variances: Tensors,
    epoch_num: torch.Tensor,
    learning_rate: torch.Tensor,
    weight_decay: float,
    lr_decay: float,
    epsilon: float,
) -> None:
    """Updates weights and sums of squares in place, as torch.optim.Adagrad does.

    With `d = g + weight_decay * w`: `v = v + d^2`, then
    `w = w - lr / (1 + (t - 1) * lr_decay) * d / (sqrt(v) + epsilon)`; `epoch_num` is t, from 1.

    Source: the kernel of the card is closed; the bridge's test holds it to torch.optim.Adagrad.
    """
    check_tensors("fused_adagrad", gradients=gradients, weights=weights, variances=variances)
    rate = learning_rate.reshape(()) / (1.0 + (epoch_num.reshape(()) - 1) * lr_decay)
    for gradient, weight, variance in zip(gradients, weights, variances, strict=True):
        direction = gradient + weight * weight_decay if weight_decay else gradient
        variance.add_(direction * direction)
        weight.sub_(direction / (variance.sqrt() + epsilon) * rate)


@operator(
    "optimizer_lars(Tensor[] params, Tensor(a!)[] grads, int[] skip_masks, float eeta, "
    "float weight_decay, float eps, Tensor lr) -> ()"
)
def optimizer_lars(
    params: Tensors,
    grads: Tensors,
    skip_masks: list[int],
    eeta: float,
    weight_decay: float,
    eps: float,
    lr: torch.Tensor,
) -> None:
    """Turns gradients into steps, in place: `lr * ratio * (g + weight_decay * w)`.

    The ratio is `eeta * |w| / (|g| + weight_decay * |w| + eps)`, and 1 where a norm is zero. A
    mask of 0 gives `lr * g`.

    Source: Gaudi PyTorch bridge 1.19, hpu_ops/backend/optimizer_lars_gen.cpp.
    """
    check_tensors("optimizer_lars", params=params, grads=grads, skip_masks=skip_masks)
    lr = lr.reshape(())
    for weight, gradient, is_scaled in zip(params, grads, skip_masks, strict=True):
        if not is_scaled:
            gradient.mul_(lr)
            continue
        weight_norm = torch.linalg.vector_norm(weight)
        gradient_norm = torch.linalg.vector_norm(gradient)
        ratio = weight_norm * eeta / (weight_norm * weight_decay + eps + gradient_norm)
        has_norms = (weight_norm > 0) & (gradient_norm > 0)
        ratio = torch.where(has_norms, ratio, torch.ones_like(ratio))
        gradient.add_(weight * weight_decay).mul_(ratio * lr)


@operator(
    "optimizer_resource_apply_momentum(Tensor(a!)[] params_momentum_buf_list, Tensor[] dp_list, "
    "float momentum) -> ()"
)
def optimizer_resource_apply_momentum(
    params_momentum_buf_list: Tensors, dp_list: Tensors, momentum: float
) -> None:
    """Updates buffers and weights in place: `m = momentum * m - d`, then `w = w + m`.

    Args:
        params_momentum_buf_list: Weight and buffer in turn.
        dp_list: The steps, into which the learning rate has gone.
        momentum: The buffers' decay.
    """
    weights, buffers = params_momentum_buf_list[0::2], params_momentum_buf_list[1::2]
    check_tensors(
        "optimizer_resource_apply_momentum", weights=weights, buffers=buffers, dp_list=dp_list
    )
    for weight, buffer, step in zip(weights, buffers, dp_list, strict=True):
        weight.add_(buffer.mul_(momentum).sub_(step))
