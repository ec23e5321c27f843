"""Makes optimizers by name, their parameter groups, and learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from lightning_gaudi import vendor
from recipes.common.errors import UserError

OptimizerName = Literal["auto", "adamw", "fused_adamw", "lamb", "fused_lamb"]
Schedule = Literal["linear", "cosine", "polynomial", "constant"]

EPSILON = 1e-6
"""BERT's epsilon, and the default of the vendor's kernels; torch's AdamW has 1e-8."""
AUTO = "auto"
"""The name of AdamW by the vendor's kernel for whole weights on an HPU, else by torch."""
CLIPS_ITSELF = ("lamb", "fused_lamb")
"""The optimizers that clip: LAMB divides gradients by their global norm before anything else."""


class Lamb(torch.optim.Optimizer):
    """LAMB on any device, with the same update and the same state as the vendor's FusedLamb.

    Gradients are clipped by the global norm of all groups. A weight moves along Adam's direction
    plus `weight_decay` times itself; in groups with weight decay the step is scaled by the trust
    ratio, the norm of the weight over the norm of the direction. Nothing waits for the device.

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        betas: decay of the averages of the gradient and of its square.
        eps: added to the denominator.
        weight_decay: added to the direction, in units of the weight.
        max_grad_norm: the largest global norm of the gradients; None does not clip.

    Source: You et al., Large Batch Optimization for Deep Learning, 2019 (arXiv 1904.00962); the
    clipping and the choice of groups are those of hpex.optimizers.FusedLamb, Gaudi PyTorch bridge
    1.19.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = EPSILON,
        weight_decay: float = 0.01,
        max_grad_norm: float | None = 1.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        # The vendor's groups have these names, and can be loaded from ours.
        always = {"bias_correction": True, "grad_averaging": True}
        super().__init__(params, {**defaults, "max_grad_norm": max_grad_norm, **always})

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        """Clips the gradients and updates the parameters that have them."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        divisor = self._divisor()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad / divisor, group)
        return loss

    def _divisor(self) -> Tensor | float:
        """Returns the global norm over its limit, but at least one."""
        limit = self.defaults["max_grad_norm"]
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        norms = [torch.linalg.vector_norm(g) for g in gradients if g is not None]
        if limit is None or not norms:
            return 1.0
        return (torch.linalg.vector_norm(torch.stack(norms)) / limit).clamp(min=1.0)

    def _update(self, weight: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state.update(_zero_averages(weight))
        beta1, beta2 = group["betas"]
        average = state["exp_avg"].mul_(beta1).add_(gradient, alpha=1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        correction1, correction2 = (1 - beta ** group["step"] for beta in (beta1, beta2))
        step = (average / correction1) / ((square / correction2).sqrt() + group["eps"])
        if group["weight_decay"]:
            step = step.add(weight, alpha=group["weight_decay"])
            weight_norm, step_norm = map(torch.linalg.vector_norm, (weight, step))
            has_norms = (weight_norm > 0) & (step_norm > 0)
            step = step * torch.where(has_norms, weight_norm / step_norm, 1.0)
        weight.sub_(step * group["lr"])


def make_optimizer(
    name: OptimizerName,
    module: nn.Module,
    *,
    learning_rate: float,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    max_grad_norm: float | None = 1.0,
    epsilon: float = EPSILON,
) -> torch.optim.Optimizer:
    """Returns the optimizer of that name, for the parameters that are trained.

    Args:
        name: adamw or lamb (torch, any device); fused_adamw or fused_lamb (the vendor's kernels);
            auto: fused_adamw on an HPU, adamw elsewhere. Of AdamW's two either goes on with what
            the other has saved.
        module: on its device already, its weights whole if `name` is not adamw.
        learning_rate: at its peak.
        weight_decay: of all weights but biases and norms.
        betas: decay of the averages.
        max_grad_norm: of lamb and fused_lamb, which clip by themselves; the others leave it to
            `trainer.gradient_clip_val`.
        epsilon: added to the denominator of the step.

    Raises:
        UserError: for a kernel of the vendor's on another device than hpu.
    """
    devices = {parameter.device.type for parameter in module.parameters()}
    if name == AUTO:
        name = "fused_adamw" if devices == {"hpu"} else "adamw"
    if name.startswith("fused_") and devices != {"hpu"}:
        raise UserError(
            f"model.optimizer={name} is the vendor's kernel for hpu, but the model is on "
            f"{', '.join(sorted(devices))}. Use model.optimizer={kind(name)}, or "
            "trainer.accelerator=hpu."
        )
    settings: dict[str, Any] = {"lr": learning_rate, "betas": tuple(betas), "eps": epsilon}
    if name in CLIPS_ITSELF:
        settings["max_grad_norm"] = max_grad_norm
    optimizer = _optimizer_class(name)(parameter_groups(module, weight_decay), **settings)
    if name.startswith("fused_"):
        _allocate_averages(optimizer)
    if kind(name) == "adamw":
        optimizer.register_load_state_dict_pre_hook(_translated)
    return optimizer


def kind(name: str) -> str:
    """Returns the averages that an optimizer keeps, as adamw or lamb, whoever computes them."""
    return "adamw" if name == AUTO else name.removeprefix("fused_")


def _translated(
    optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]
) -> dict[str, Any] | None:
    """Returns the state of the other AdamW in this one's form: the vendor's counts a group's steps.

    Both have the same averages, and neither would notice that the other's count is missing. It
    would count from 0, and correct full averages as if they were empty.

    Returns:
        None if the state has this one's form, or no step was made.
    """
    is_torchs = isinstance(optimizer, torch.optim.AdamW)
    state, saved = state_dict["state"], state_dict["param_groups"]
    counts = [_num_steps(group, state) for group in saved]
    if is_torchs != any("step" in group for group in saved) or not any(counts):
        return None
    if len(saved) != len(optimizer.param_groups):
        return None  # the optimizer refuses it
    groups = []
    for own, group, count in zip(optimizer.param_groups, saved, counts, strict=True):
        # Settings that only the other knows are left out; those that only this one knows stay.
        kept = {name: group[name] for name in (*own, "initial_lr") if name in group}
        merged = {**own, **kept}
        groups.append(merged if is_torchs else {**merged, "step": count})
    steps = {
        index: count
        for group, count in zip(saved, counts, strict=True)
        for index in group["params"]
    }
    states = {
        index: {**values, "step": torch.tensor(float(steps[index])) if is_torchs else 0}
        for index, values in state.items()
    }
    return {**state_dict, "state": states, "param_groups": groups}


def _num_steps(group: dict[str, Any], state: dict[Any, dict[str, Any]]) -> int:
    """Returns how many steps a group has made, as the vendor's AdamW counts them, or torch's."""
    counts = [state[index].get("step", 0) for index in group["params"] if index in state]
    return int(max([group.get("step", 0), *counts]))


def _allocate_averages(optimizer: torch.optim.Optimizer) -> None:
    """Makes the averages that the vendor's kernels make in their first step.

    In lazy mode that step would otherwise be another graph for each group of parameters.
    Source: hpex.optimizers.FusedAdamW and FusedLamb, Gaudi PyTorch bridge 1.19.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {"step": 0, **_zero_averages(parameter)}
    vendor.mark_step()  # otherwise the first forward and backward pass is another graph, too


def _zero_averages(parameter: nn.Parameter) -> dict[str, Tensor]:
    """Returns the averages of the gradient and of its square, before the first step."""
    return {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}


def _optimizer_class(name: OptimizerName) -> Callable[..., torch.optim.Optimizer]:
    if name == "fused_adamw":
        return vendor.fused_adamw()
    if name == "fused_lamb":
        return vendor.fused_lamb()
    return Lamb if name == "lamb" else torch.optim.AdamW


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Returns the group of weights, which decay, and that of biases and norms, which do not.

    An empty group is left out, since the vendor's kernels crash on one.
    """
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if _num_dims(p) > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if _num_dims(p) <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _num_dims(weight: nn.Parameter) -> int:
    """Returns the number of dims of a whole weight; ZeRO-3 leaves an empty one with its shape."""
    return len(getattr(weight, "ds_shape", weight.shape))


def make_schedule(
    name: Schedule, optimizer: torch.optim.Optimizer, num_steps: float, warmup_steps: float
) -> LambdaLR:
    """Returns the learning rate over the steps of a run, as a share of its peak.

    Args:
        name: linear: up to the peak in the warm-up, then down to zero at the last step.
            cosine: likewise, down along half a cosine.
            polynomial: as the published LAMB runs, s / warm-up, then (1 - s)^0.5, with s the share
            of the run that is done. constant: the peak after the warm-up.
        optimizer: whose `lr` is the peak.
        num_steps: optimizer steps of the run.
        warmup_steps: 1 or more: steps; below 1: a share of the run.

    Raises:
        UserError: if the length of the run is needed and not known, or the warm-up is longer.
    """
    if num_steps == float("inf") and (name != "constant" or 0 < warmup_steps < 1):
        raise UserError(
            f"model.schedule={name} with model.warmup_steps={warmup_steps} needs the length of the "
            "run. Set trainer.max_steps or trainer.max_epochs."
        )
    num_warmup = warmup_steps * num_steps if 0 < warmup_steps < 1 else warmup_steps
    if not 0 <= num_warmup <= num_steps:
        raise UserError(
            f"model.warmup_steps={warmup_steps} does not lie within the {num_steps:.0f} steps of "
            "the run. Give a number of steps, or a share below 1."
        )

    def linear(step: int) -> float:
        if step < num_warmup:
            return (step + 1) / num_warmup
        return max(0.0, (num_steps - step) / max(1.0, num_steps - num_warmup))

    def cosine(step: int) -> float:
        if step < num_warmup:
            return (step + 1) / num_warmup
        done = (step - num_warmup) / max(1.0, num_steps - num_warmup)
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))

    def polynomial(step: int) -> float:
        # The step that is being taken counts, so that the first one moves the weights.
        done = min(1.0, (step + 1) / max(1.0, num_steps))
        return (step + 1) / num_warmup if step + 1 < num_warmup else (1.0 - done) ** 0.5

    def constant(step: int) -> float:
        return min(1.0, (step + 1) / num_warmup) if num_warmup else 1.0

    shapes = {"linear": linear, "cosine": cosine, "polynomial": polynomial, "constant": constant}
    return LambdaLR(optimizer, shapes[name])
