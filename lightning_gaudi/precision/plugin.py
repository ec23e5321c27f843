"""Has `HPUPrecisionPlugin`, the Trainer's plugin for the precisions of one card, DDP and FSDP2."""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric.plugins.precision.amp import _optimizer_handles_unscaling
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.optim import Optimizer
from typing_extensions import override

from ..fabric.precision.plugin import HPUWholePrecision


# Lightning's `forward_context` is typed as made by a generator, and ours is any context manager.
class HPUPrecisionPlugin(HPUWholePrecision, MixedPrecision):  # type: ignore[misc]
    """Sets how numbers are held and computed on an HPU: `Trainer(precision=...)`.

    The forward of a step and its loss are computed as `HPUWholePrecision` says.
    """

    @override
    def autocast_context_manager(self) -> torch.autocast:
        """Returns autocast on the HPU; it has no effect if the precision is not mixed."""
        return torch.autocast("hpu", dtype=self._dtype, enabled=self._is_mixed, cache_enabled=False)

    @override
    def clip_gradients(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        """Clips gradients after unscaling those of `"16-mixed"`, also if called by hand."""
        unscale_to_clip(self, optimizer)
        super().clip_gradients(optimizer, *args, **kwargs)

    @override
    def clip_grad_by_norm(self, optimizer: Optimizer, clip_val: float) -> None:
        """Clips by the norm of the optimizer's gradients, by the vendor's kernel where it can."""
        from lightning_gaudi._core.precision.fused_clipping import clip_norm

        clip_norm(self.main_params(optimizer), clip_val)

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Goes on with the scale of a run on other devices, or with another strategy."""
        restore_scale(self, checkpoint)


HPUPrecision = HPUPrecisionPlugin
"""Its name in Fabric; the selection of strategies looks for it in either package."""

_SCALED = ("HPUPrecisionPlugin", "HPUFSDPPrecision", "MixedPrecision", "FSDPPrecision")
"""Plugins that scale losses; a checkpoint has their states by the names of their classes."""


def unscale_to_clip(plugin: Any, optimizer: Any) -> None:
    """Unscales gradients before they are clipped, unless that was done.

    In manual optimization Lightning clips gradients that are still scaled, by some 65536 times.

    Args:
        plugin: A plugin of ours.
        optimizer: An optimizer of torch, or Lightning's wrapper of one.
    """
    if (scaler := plugin.scaler) is None:
        return
    inner = vars(optimizer).get("_optimizer", optimizer)
    # Lightning refuses to clip what an optimizer unscales itself.
    if not _optimizer_handles_unscaling(inner):
        scaler.unscale_to_clip(inner)


def restore_scale(plugin: Any, checkpoint: dict[str, Any]) -> None:
    """Takes the scale of another plugin, if the checkpoint has none of this one.

    Args:
        plugin: A plugin of ours that is about to be restored.
        checkpoint: The checkpoint of Lightning.
    """
    found = [checkpoint[name] for name in _SCALED if checkpoint.get(name)]
    if plugin.scaler is not None and type(plugin).__qualname__ not in checkpoint and found:
        plugin.load_state_dict(found[0])
