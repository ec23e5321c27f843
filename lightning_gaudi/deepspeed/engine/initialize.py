"""Makes DeepSpeed's engine, which shards model and optimizer and trains them."""

from __future__ import annotations

import importlib
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch.distributed as dist
from torch.nn import Module
from torch.optim import Optimizer

from lightning_gaudi._core import engines
from lightning_gaudi._core.tied_weights import kept_tied
from lightning_gaudi._patches.apply import replaced

from .. import library
from ..config.offload import check_stepping
from ..config.optimizers import take_vendors
from . import memory
from .copies import copy_at_once
from .lifecycle import leave_last_engine, move_to_card, refuse_unfrozen
from .norms import measure_at_once, scale_no_loss_by_1
from .regions import begin_steps_with_engine

_CARD = 0
"""The index of the card: a process drives one, which it sees as `hpu:0`."""


def make_engine(
    model: Module,
    config: dict[str, Any],
    *,
    optimizer: Optimizer | None = None,
    lr_scheduler: Any = None,
) -> tuple[Any, Any]:
    """Returns an engine that trains `model`.

    Args:
        model: Its parameters that require gradients are trained.
        config: DeepSpeed's settings.
        optimizer: None where `config` names one.
        lr_scheduler: Of torch's, for `optimizer`.

    Returns:
        The engine, and DeepSpeed's optimizer around `optimizer` or the configured one.
    """
    package = library.load()
    leave_last_engine(model)
    move_to_card(model, optimizer)
    parameters = [each for each in model.parameters() if each.requires_grad]
    check_stepping(config, optimizer)
    config, optimizer = take_vendors(config, optimizer, parameters)
    with _without_trial_step(), _kept_tied(model, config):
        engine, wrapped, _, _ = package.initialize(
            args=Namespace(device_rank=_CARD),
            config=memory.with_fitting_buckets(config, model, dist.get_world_size()),
            model=model,
            model_parameters=parameters,
            optimizer=optimizer,
            lr_scheduler=lr_scheduler,
            dist_init_required=False,
        )
    if is_stage_3(config):
        begin_steps_with_engine(engine)
        memory.save_views_as_weights(model)
    memory.share_equal_copies(engine.optimizer)
    copy_at_once(engine.optimizer)
    measure_at_once(engine.optimizer)
    scale_no_loss_by_1()
    refuse_unfrozen(engine, model)
    engines.note(model, engine)
    return engine, wrapped


@contextmanager
def _without_trial_step() -> Iterator[None]:
    """Keeps DeepSpeed from stepping the optimizer before there are gradients.

    In half precision and stage 0 it takes a step with gradients of zero to allocate the optimizer's
    states. Adam counts it as its first step and decays the weights by it, so all later losses
    differ from those of stages 1 to 3. Delete once `initialize_optimizer_states` of these classes
    takes no step (deepspeed 0.19.8: `runtime/fp16/{fused,unfused}_optimizer.py`).
    """
    home = "deepspeed.runtime.fp16"
    kinds = [
        importlib.import_module(f"{home}.fused_optimizer").FP16_Optimizer,
        importlib.import_module(f"{home}.unfused_optimizer").FP16_UnfusedOptimizer,
    ]
    with ExitStack() as stack:
        for kind in kinds:
            nothing = {"initialize_optimizer_states": lambda self: None}
            stack.enter_context(replaced("deepspeed-trial-step", kind, **nothing))
        yield


def make_inference_engine(model: Module, config: Mapping[str, Any]) -> Any:
    """Returns an engine that evaluates `model`, sharded under ZeRO-3.

    Args:
        model: Its weights may be in shards already.
        config: DeepSpeed's settings for training.
    """
    # Only what decides how weights are held: the other settings are for training.
    names = ["fp16", "bf16"]
    if is_stage_3(config):
        names += ["zero_optimization", "zero_allow_untested_optimizer"]
    chosen = {name: config[name] for name in names if name in config}
    leave_last_engine(model)
    move_to_card(model)
    with _kept_tied(model, config):
        engine, _, _, _ = library.load().initialize(
            args=Namespace(device_rank=_CARD),
            config={"train_micro_batch_size_per_gpu": 1, **chosen},
            model=model,
            model_parameters=[],
            dist_init_required=False,
        )
    if is_stage_3(config):
        begin_steps_with_engine(engine)
    engines.note(model, engine)
    return engine


def _kept_tied(model: Module, config: Mapping[str, Any]) -> AbstractContextManager[None]:
    # DeepSpeed moves the model to the card, which may untie weights. ZeRO-3 keeps them tied by the
    # shards that they share.
    return nullcontext() if is_stage_3(config) else kept_tied(model)


def is_stage_3(config: Mapping[str, Any]) -> bool:
    """Returns whether parameters are sharded, too (ZeRO stage 3)."""
    stage = (config.get("zero_optimization") or {}).get("stage")
    return bool(stage == 3)


_ACTIVATION_KEYS = {
    "partition_activations": "partition_activations",
    "contiguous_memory_optimization": "contiguous_checkpointing",
    "number_checkpoints": "num_checkpoints",
    "cpu_checkpointing": "checkpoint_in_cpu",
    "synchronize_checkpoint_boundary": "synchronize",
    "profile": "profile",
}
"""Keys of `activation_checkpointing`, and the arguments of DeepSpeed's function for them."""


def configure_checkpointing(config: Mapping[str, Any]) -> None:
    """Passes all settings of activation checkpointing to `deepspeed.checkpointing`.

    Lightning drops the number of checkpoints and the synchronization at their boundaries
    (2.5.6 to 2.6.6, `_set_deepspeed_activation_checkpointing`).
    """
    settings = config.get("activation_checkpointing")
    if settings:
        arguments = {
            argument: settings[key]
            for key, argument in _ACTIVATION_KEYS.items()
            if settings.get(key) is not None
        }
        library.load().checkpointing.configure(mpu_=None, **arguments)
