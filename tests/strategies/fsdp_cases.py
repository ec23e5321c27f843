"""Ways to shard `sharded_cases.Stack` with FSDP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch.strategies import FSDPStrategy
from torch import Tensor
from torch.distributed.fsdp.wrap import wrap

from tests.strategies.sharded_cases import Batch, Block, LateStack, Stack, make_net

POLICY = {Block}


class ExactLoss(Stack):
    """Its loss is computed in fp32, also under autocast, which would round it to 8 bits."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        output = self.net(batch[0])
        with torch.autocast(self.device.type, enabled=False):
            loss = (output.float() - batch[1].float()).pow(2).mean()
        self.losses.append(loss.detach().clone())
        return loss


class UserWrapped(LateStack):
    """Wraps its layers, and then all of them, itself."""

    def configure_model(self) -> None:
        if not hasattr(self, "net"):
            net = make_net()
            for index, layer in enumerate(net):
                net[index] = wrap(layer)
            self.net = wrap(net)


class UserWrappedLayers(LateStack):
    """Wraps its layers itself, one by one: there is no root that knows all gradients."""

    def configure_model(self) -> None:
        if not hasattr(self, "net"):
            net = make_net()
            for index, layer in enumerate(net):
                net[index] = wrap(layer)
            self.net = net


class WrappedParameters(Stack):
    """Takes the parameters from what wraps it, as use_orig_params=False demands."""

    def parameters(self, recurse: bool = True) -> Any:
        model = self._trainer.model if self._trainer is not None else None
        return super().parameters(recurse) if model in (None, self) else model.parameters(recurse)


@dataclass(frozen=True)
class Mode:
    """A strategy, and the model and the Trainer's settings that go with it."""

    strategy: Callable[[], Any]
    model: type[Stack] = Stack
    settings: dict[str, Any] = field(default_factory=dict)


def wrapped(**arguments: Any) -> Callable[[], FSDPStrategy]:
    """Each block is sharded, gathered and freed as one."""
    return lambda: FSDPStrategy(auto_wrap_policy=POLICY, **arguments)


MODES = {
    "whole": Mode(lambda: "fsdp"),
    "blocks": Mode(wrapped()),
    "configure_model": Mode(wrapped(), LateStack),
    "user_wrapped_layers": Mode(lambda: "hpu_fsdp", UserWrappedLayers),
    "grad_op": Mode(wrapped(sharding_strategy="SHARD_GRAD_OP")),
    "no_shard": Mode(wrapped(sharding_strategy="NO_SHARD")),
    "hybrid": Mode(wrapped(sharding_strategy="HYBRID_SHARD")),
    "checkpointed": Mode(wrapped(activation_checkpointing_policy=POLICY)),
    "flat": Mode(wrapped(use_orig_params=False), WrappedParameters),
    "offload": Mode(lambda: "fsdp_cpu_offload"),
}
"""In each, in fp32, the losses are those of DDP."""

FOUR = {
    "blocks": Mode(wrapped()),
    "hybrid_mesh": Mode(wrapped(sharding_strategy="HYBRID_SHARD", device_mesh=(2, 2))),
}
"""Those that four cards are needed for, or make a difference to."""

BF16 = {
    precision: Mode(wrapped(), ExactLoss, {"precision": precision})
    for precision in ("bf16-mixed", "bf16-true")
}
"""Compared with DDP in the same precision."""
