"""Scales losses for float16 with operators that a card has.

A card has no kernel for a scaler's update, and in lazy mode none for unscaling, so the CPU would
compute them with a copy of every gradient. Otherwise these are torch's scalers: each step of an
optimizer reads one number from the device, whether a gradient overflowed.
Source: Intel Gaudi PyTorch bridge, 1.24.0 `habana_eager/eager_custom_op_register.cpp`, 1.24.1
`scripts/hpu_op.yaml`; 1.19.0 has neither kernel.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.amp import GradScaler
from torch.amp.grad_scaler import OptState, _refresh_per_optimizer_state
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from typing_extensions import override

from .. import vendor


class CardScaler(GradScaler):
    """The base of the scalers for whole models and for FSDP's shards."""

    # Class attributes, since a scaler of the user's may have become one of ours.
    spans_ranks = False
    """Whether ranks hold parts of one model, all of which skip a step if one has to."""
    takes_float16 = False
    """Whether gradients may be in float16."""

    @override
    def scale(self, outputs: Any) -> Any:
        """Multiplies a loss, or several, by the scale.

        Args:
            outputs: A tensor, or an iterable of tensors.
        """
        for state in self._per_optimizer_states.values() if self.is_enabled() else ():
            if _is_clipped_by_hand(state):
                state.setdefault(_BEFORE, _snapshot(state[_BY_HAND]))
        with _without_autocast():
            return super().scale(outputs)

    def unscale_to_clip(self, optimizer: Optimizer) -> None:
        """Divides gradients by the scale before they are clipped, unless they are unscaled.

        The step of this optimizer then does not unscale them again, even if others step first.

        Raises:
            RuntimeError: A backward has added to gradients that were clipped before.
        """
        if not self.is_enabled():
            return
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.UNSCALED and not state.get(_BY_HAND):
            return
        self.unscale_(optimizer)
        self._per_optimizer_states[id(optimizer)][_BY_HAND] = optimizer

    @override
    def unscale_(self, optimizer: Optimizer) -> None:
        """Divides the gradients of an optimizer by the scale, without waiting for the card."""
        if not self.is_enabled():
            return
        scale, _ = self._check_scale_growth_tracker("unscale_")
        state = self._per_optimizer_states[id(optimizer)]
        if _is_clipped_by_hand(state):
            if _are_unscaled(state.get(_BEFORE, {})):
                return
            state = self._per_optimizer_states[id(optimizer)] = _refresh_per_optimizer_state()
        if state["stage"] is not OptState.READY:
            super().unscale_(optimizer)  # which raises
        found_inf = torch.zeros_like(scale)
        with _without_autocast():
            # torch divides in float64, which a card does not have.
            inv_scale = scale.reciprocal()
            found = self._unscale_grads_(optimizer, inv_scale, found_inf, self.takes_float16)
        if self.spans_ranks:
            # A rank sees only its shards, but all must take or skip the step.
            overflow = _total(found.values(), scale.device)
            dist.all_reduce(overflow, group=getattr(self, "process_group", None))
            found = {scale.device: overflow}
        # torch's `step` reads this to decide whether to skip.
        state["found_inf_per_device"] = found
        state["stage"] = OptState.UNSCALED

    @override
    def _unscale_grads_(
        self,
        optimizer: Optimizer,
        inv_scale: Tensor,
        found_inf: Tensor,
        allow_fp16: bool = False,
    ) -> dict[torch.device, Tensor]:
        found: dict[torch.device, Tensor] = {found_inf.device: found_inf}
        for (device, dtype), gradients in _gradients(optimizer).items():
            if dtype == torch.float16 and not allow_fp16:
                raise ValueError(
                    "Gradients in float16 cannot be unscaled, since small ones are lost before "
                    "that. Keep the weights in float32 with precision='16-mixed'."
                )
            found.setdefault(device, found_inf.to(device))
            _unscale(gradients, found[device], inv_scale.to(device))
        return found

    @override
    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Halves the scale after an overflow, doubles it after `growth_interval` steps without one.

        Args:
            new_scale: What to set it to instead.
        """
        states = self._per_optimizer_states if self.is_enabled() else {}
        # An optimizer whose gradients were clipped by hand may step after another one's update. Its
        # state is kept for its own update.
        waiting = {key: state for key, state in states.items() if _is_clipped_by_hand(state)}
        stepped = [state for key, state in states.items() if key not in waiting]
        found = [each for state in stepped for each in state["found_inf_per_device"].values()]
        if new_scale is not None or not found:
            super().update(new_scale)
            if waiting:
                self._per_optimizer_states.update(waiting)
            return
        scale, tracker = self._check_scale_growth_tracker("update")
        with _without_autocast():
            has_overflow = _total(found, scale.device) > 0
            count = torch.where(has_overflow, 0, tracker + 1)
            is_due = count == self._growth_interval
            grown = scale * self._growth_factor
            # As tensors throughout: a branch on the host would wait for the card.
            kept = torch.where(is_due & grown.isfinite(), grown, scale)
            scale.copy_(torch.where(has_overflow, scale * self._backoff_factor, kept))
            tracker.copy_(torch.where(is_due, 0, count))
        self._per_optimizer_states = defaultdict(_refresh_per_optimizer_state, waiting)


class HPUGradScaler(CardScaler):
    """Scales the losses of a model on an HPU, as torch's `GradScaler("hpu")`."""

    def __init__(self, device: str = "hpu", **settings: Any) -> None:
        """Creates one.

        Args:
            device: `"hpu"`, as torch's has it.
            settings: Those of torch's `GradScaler`: `init_scale`, `growth_factor`,
                `backoff_factor`, `growth_interval`, `enabled`.
        """
        super().__init__(device, **settings)


_BY_HAND, _BEFORE = "lightning_gaudi.by_hand", "lightning_gaudi.before"
"""Keys in a scaler's state of an optimizer: the optimizer, if its gradients were unscaled to be
clipped by hand, and a snapshot of these gradients when the next loss was scaled."""


def _is_clipped_by_hand(state: dict[str, Any]) -> bool:
    return bool(state.get(_BY_HAND)) and state["stage"] is OptState.UNSCALED


def _snapshot(optimizer: Optimizer) -> dict[Tensor, tuple[Callable[[], Tensor | None], int]]:
    """Returns a weak reference to the gradient of each parameter, and its version."""
    parameters: list[Tensor] = [
        each for group in optimizer.param_groups for each in group["params"]
    ]
    pairs = [(each, each.grad) for each in parameters]
    return {each: (weakref.ref(grad), grad._version) for each, grad in pairs if grad is not None}


def _are_unscaled(before: dict[Tensor, tuple[Callable[[], Tensor | None], int]]) -> bool:
    """Returns whether unscaled gradients are unchanged; False if all of them are new.

    Raises:
        RuntimeError: A scaled gradient has been added to some of them.
    """
    gradients = [(parameter.grad, *was) for parameter, was in before.items()]
    if all(
        now is not None and now is was() and now._version == version
        for now, was, version in gradients
    ):
        return True
    if any(now is not None and now is was() for now, was, _ in gradients):
        raise RuntimeError(
            "Gradients were clipped by hand in 16-mixed precision, and before their optimizer "
            "stepped a backward has added scaled gradients to them. Call clip_gradients after the "
            "last backward before optimizer.step(), and set gradients to None, not to zero, if no "
            "step is taken."
        )
    return False


def _without_autocast() -> AbstractContextManager[Any]:
    """Switches autocast off, in which a scaler of manual optimization would compute otherwise.

    A scale begins at 65536, which is infinite in float16. torch's autocast for CUDA does not lower
    the scaler's operators.
    """
    return torch.autocast("hpu", enabled=False)


def _total(found: Iterable[Tensor], device: torch.device) -> Tensor:
    """Returns how many overflows were found, of shape ()."""
    first, *others = (each.to(device, non_blocking=True).reshape(()) for each in found)
    return sum(others, first)


def _gradients(optimizer: Optimizer) -> dict[tuple[torch.device, torch.dtype], list[Tensor]]:
    """Returns the gradients, or this rank's part of them, by device and dtype."""
    found: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            part = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            found[part.device, part.dtype].append(part)
    return found


@torch.no_grad()
def _unscale(gradients: list[Tensor], found_inf: Tensor, inv_scale: Tensor) -> None:
    # In lazy mode this operator would run on the CPU, with a copy of every gradient.
    if not (found_inf.device.type == "hpu" and vendor.is_lazy()):
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inv_scale)
        return
    for gradient in gradients:
        found_inf.copy_(torch.maximum(found_inf, (~gradient.isfinite()).any().float()))
        gradient.mul_(inv_scale)
