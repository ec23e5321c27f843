"""What a fit has pruned with `torch.nn.utils.prune`, as `ModelPruning` does.

That callback saves weights as if they had never been pruned, so that they would grow again; and
the weights that it goes back to (the lottery ticket's) are those of the process that began.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelPruning
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor, nn
from torch.nn.utils import prune

from lightning_gaudi.untrusted import printable

Pruned = Mapping[str, Mapping[str, Tensor]]
_MASKS, _FIRST = "masks", "first_weights"


def take(trainer: pl.Trainer) -> dict[str, dict[str, Tensor]]:
    """Returns the masks, bool, and the weights that callbacks go back to: on the CPU, by names."""
    masks = {
        f"{name}.{hook._tensor_name}": getattr(each, f"{hook._tensor_name}_mask").bool().cpu()
        for name, each in trainer.lightning_module.named_modules()
        for hook in each._forward_pre_hooks.values()
        if isinstance(hook, prune.BasePruningMethod)
    }
    first = {key: weight.detach().cpu() for key, weight in _first_weights(trainer)}
    return {_MASKS: masks, _FIRST: first}


def put(trainer: pl.Trainer, saved: Pruned) -> None:
    """Prunes as another process has pruned.

    Args:
        trainer: Of a fit; its module's weights are loaded.
        saved: What `take` returned. Masks of weights that this fit has not are named in a warning.
    """
    module = trainer.lightning_module
    owners = dict(module.named_modules())
    for key, mask in saved.get(_MASKS, {}).items():
        path, _, name = key.rpartition(".")
        owner: Any = owners.get(path)
        weight = getattr(owner, name, None)
        if not isinstance(weight, nn.Parameter) or weight.shape != mask.shape:
            has = "no such weight" if weight is None else "another"
            rank_zero_warn(
                f"The fit that saved this checkpoint had pruned {printable(key)}, and this one has "
                f"{has}: it goes on without that mask."
            )
        else:
            prune.custom_from_mask(owner, name, mask.to(weight.device, torch.bool))  # type: ignore[no-untyped-call]
    first = saved.get(_FIRST, {})
    for key, weight in _first_weights(trainer):
        if key in first and first[key].shape == weight.shape:
            weight.data.copy_(first[key])


def _first_weights(trainer: pl.Trainer) -> Iterator[tuple[str, Tensor]]:
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for number, callback in enumerate(each for each in callbacks if isinstance(each, ModelPruning)):
        for layer in (callback._original_layers or {}).values():
            for index, name in layer["names"]:
                weight = getattr(layer["data"], name, None)
                if isinstance(weight, Tensor):
                    yield f"{number}.{index}", weight
