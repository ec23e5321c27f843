"""`on_train_epoch_start` of the epoch in which a fit resumes.

Lightning calls it no more: it was called in the process that began the epoch, and what it set there
(what trains, a factor, the batches to accumulate) is not set here. It is called again, and what it
changes of what the checkpoint has kept is put back as it was.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ProgressBar
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from lightning_gaudi._core import host_random, vendor

HOOK = "on_train_epoch_start"


def call_again(trainer: pl.Trainer) -> None:
    """Calls the hook of the callbacks and the module.

    Args:
        trainer: Of a fit whose states are loaded, within an epoch.
    """
    with _kept(trainer):
        call._call_callback_hooks(trainer, HOOK)
        call._call_lightning_module_hook(trainer, HOOK)


@contextmanager
def _kept(trainer: pl.Trainer) -> Iterator[None]:
    """Leaves behind the `with` block what a checkpoint keeps as it was before it."""
    if not _may_change(trainer):
        yield
        return
    host, device = host_random.take(), vendor.get_rng_state()
    # There is room for copies: the gradients, which are as large, are still to come.
    tensors = [(each, each.detach().clone()) for each in _to_keep(trainer.lightning_module)]
    every: Any = trainer
    rates = [[_without_weights(each) for each in one.param_groups] for one in trainer.optimizers]
    schedulers = [config.scheduler for config in every.lr_scheduler_configs]
    callbacks = [each for each in every.callbacks if _keeps_state(each)]
    stateful = [*schedulers, *callbacks]
    states = [copy.deepcopy(each.state_dict()) for each in stateful]
    yield
    with torch.no_grad():
        for tensor, value in tensors:
            tensor.copy_(value)
    for optimizer, groups in zip(trainer.optimizers, rates, strict=True):
        for group, rate in zip(optimizer.param_groups, groups, strict=False):
            group.update(rate)
    for each, state in zip(stateful, states, strict=True):
        each.load_state_dict(state)
    host_random.put(host)
    vendor.set_rng_state(device)


def _may_change(trainer: pl.Trainer) -> bool:
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return is_overridden(HOOK, trainer.lightning_module) or any(_overrides(c) for c in callbacks)


def _overrides(callback: pl.Callback) -> bool:
    shows = isinstance(callback, (ProgressBar, LearningRateMonitor))
    return not shows and is_overridden(HOOK, callback, parent=pl.Callback)


def _keeps_state(callback: pl.Callback) -> bool:
    return _overrides(callback) and is_overridden("state_dict", callback, parent=pl.Callback)


def _to_keep(module: pl.LightningModule) -> list[Tensor]:
    """Returns weights that train, and buffers; copies of frozen weights might not fit."""
    weights = [each for each in module.parameters() if each.requires_grad]
    return [*weights, *module.buffers()]


def _without_weights(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}
