"""Implements LAMB by two operators a group, after clipping by the global norm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ...._missing import missing
from ...core.step_closure import _mark_step_if_lazy
from ._groups import check_groups, next_step, on_device, with_gradients


class FusedLamb(torch.optim.Optimizer):
    """LAMB that clips the gradients itself, so do not clip them too.

    Args:
        params: Parameters or groups of them; a group must not be empty.
        lr: Learning rate.
        bias_correction: Whether to correct the averages' start from zero.
        betas: Decay of the averages of gradient and squared gradient.
        eps: Added to the denominator.
        weight_decay: Decay of the weights, inside the trust ratio.
        amsgrad: Not supported.
        adam_w_mode: No effect, as in the vendor's: decay never enters the averages.
        grad_averaging: Whether the gradient enters its average with factor 1 - beta1, not 1.
        set_grad_none: Whether `zero_grad` sets gradients to None.
        max_grad_norm: The largest global norm, of all groups; None does not clip.
        use_lamb: Whether groups without weight decay take the trust ratio too.
        fused: No effect, as in the vendor's.
        dtype: The dtype in which the global norm is computed; the gradients' by default.

    Raises:
        ValueError: A group is empty.
        RuntimeError: `amsgrad` is set.

    Source: Gaudi PyTorch bridge 1.19, hpex.optimizers.FusedLamb; You et al., Large Batch
    Optimization for Deep Learning, 2019 (arXiv 1904.00962).
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        set_grad_none: bool = True,
        max_grad_norm: float | None = 1.0,
        use_lamb: bool = False,
        fused: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedLamb has no AMSGrad variant, got amsgrad=True. Leave it out.")
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "max_grad_norm": max_grad_norm,
        }
        super().__init__(params, defaults)
        check_groups(self)
        self.adam_w_mode = int(adam_w_mode)
        self.set_grad_none = set_grad_none
        self.use_lamb = use_lamb
        self.fused = fused
        self.dtype = dtype
        self.device = self.param_groups[0]["params"][0].device

    def zero_grad(self) -> None:
        """Sets gradients to None, or to zeros without `set_grad_none`; takes no argument."""
        super().zero_grad(set_to_none=self.set_grad_none)

    def step(self, closure: Callable[[], torch.Tensor] | None = None) -> torch.Tensor | None:
        """Clips the gradients and updates the parameters that have them.

        Args:
            closure: Computes the loss and the gradients.

        Returns:
            The closure's loss.
        """
        loss = None if closure is None else closure()
        divisor = self._divisor()
        for group in self.param_groups:
            self._update(group, divisor)
        return loss

    def _divisor(self) -> torch.Tensor:
        """Returns the number by which the gradients are divided, of shape (1,)."""
        max_norm = self.defaults["max_grad_norm"]
        if max_norm is None:
            return torch.ones(1, device=self.device)
        gradients = [
            gradient.to(self.dtype or gradient.dtype)
            for group in self.param_groups
            for _, gradient in with_gradients("FusedLamb", group)
        ]
        if not gradients:
            raise RuntimeError(
                "FusedLamb: no parameter has a gradient. Call backward() before step()."
            )
        return torch.ops.hpu.optimizer_lamb_fused_norm(gradients, max_norm)

    def _update(self, group: dict[str, Any], divisor: torch.Tensor) -> None:
        step = next_step(group)
        rows = with_gradients("FusedLamb", group)
        states = [self._state_of(p) for p, _ in rows]
        gradients = [gradient for _, gradient in rows]
        weights = [p.data for p, _ in rows]
        weight_norms = [weight.new_empty(1) for weight in weights]
        direction_norms = [weight.new_empty(1) for weight in weights]
        directions = [torch.empty_like(state["exp_avg"]) for state in states]
        _mark_step_if_lazy()
        torch.ops.hpu.optimizer_lamb_phase1(
            gradients,
            weights,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            weight_norms,
            direction_norms,
            directions,
            divisor,
            int(group["grad_averaging"]),
            *group["betas"],
            group["eps"],
            *self._corrections(group, step),
            group["weight_decay"],
        )
        _mark_step_if_lazy()
        torch.ops.hpu.optimizer_lamb_phase2(
            weights,
            direction_norms,
            weight_norms,
            directions,
            self._scalar(-group["lr"]),
            group["weight_decay"],
            self.use_lamb,
        )
        _mark_step_if_lazy()

    def _state_of(self, parameter: torch.nn.Parameter) -> dict[str, Any]:
        state = self.state[parameter]
        if not state:
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros(
                    parameter.shape, dtype=parameter.dtype, device=parameter.device
                )
        return state

    def _corrections(self, group: dict[str, Any], step: int) -> list[torch.Tensor]:
        if not group["bias_correction"]:
            return [self._scalar(1.0), self._scalar(1.0)]
        return [self._scalar(1.0 - beta**step) for beta in group["betas"]]

    def _scalar(self, value: float) -> torch.Tensor:
        return on_device(value, device=self.device)


__getattr__ = missing(__name__)
