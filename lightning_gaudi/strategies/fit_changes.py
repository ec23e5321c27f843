"""Keeps what hooks and callbacks change in a fit and Lightning's checkpoints leave out.

Examples are whether a weight trains, the dropout of a layer, and the factor of a loss. A fit that
resumes begins with what the code has set, but the hook that changed it ran in another process. Only
values that differ from the fit's beginning are kept, so that a change of the code has effect. They
are numbers and flags: a text may be a path, and a checkpoint must not decide where files are.

What `torch.nn.utils.prune` has pruned is kept as masks. Lightning's `ModelPruning` saves weights
without their masks, so that pruned weights would grow again; and the first weights, to which it
goes back for the lottery ticket hypothesis, would be those of the process that resumes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelPruning
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.optim import Optimizer

from lightning_gaudi.untrusted import printable

from .optimizer_state import nested

Values = dict[str, Any]
"""Plain values by "kind/owner/attribute", such as "module/net.1/p"."""

_PARAMETER, _MODULE, _CALLBACK, _TRAINER = "parameter", "module", "callback", "trainer"
_OPTIMIZER, _DATA = "optimizer", "datamodule"
_TRAINER_SETTINGS = ("accumulate_grad_batches", "gradient_clip_val")
_PLAIN = (bool, int, float, type(None))
_MODE = "training"


def take(trainer: pl.Trainer, *, has_engine: bool) -> Values:
    """Returns the values as they are now.

    Args:
        trainer: Of the fit.
        has_engine: Whether an engine shards the modules: it keeps attributes of its own there.
    """
    module = trainer.lightning_module
    values: Values = {
        f"{_PARAMETER}/{name}/requires_grad": each.requires_grad
        for name, each in _named(module.named_parameters())
    }
    for name, each in _named(module.named_modules()):
        for attribute in _plain(each, leave_out=_names_of(each)):
            if not (has_engine and each is not module and attribute.startswith(_OF_ENGINES)):
                values[f"{_MODULE}/{name}/{attribute}"] = getattr(each, attribute)
    validated = trainer.fit_loop.epoch_loop.val_loop
    if trainer.validating:
        # `eval` has switched all modules for now. Lightning keeps the mode to which each will
        # return.
        for name, mode in validated._module_mode.mode.items():
            if f"{_MODULE}/{name}/{_MODE}" in values:
                values[f"{_MODULE}/{name}/{_MODE}"] = mode
    for key, callback in _callbacks(trainer):
        for attribute in _plain(callback):
            values[f"{_CALLBACK}/{key}/{attribute}"] = getattr(callback, attribute)
    for key, optimizer in _optimizers(trainer):
        for attribute in _plain(optimizer, leave_out=_OPTIMIZER_NAMES):
            values[f"{_OPTIMIZER}/{key}/{attribute}"] = getattr(optimizer, attribute)
    if (data := _data(trainer)) is not None:
        for attribute in _plain(data, leave_out=_DATA_NAMES):
            values[f"{_DATA}//{attribute}"] = getattr(data, attribute)
    for attribute in _TRAINER_SETTINGS:
        if type(value := getattr(trainer, attribute)) in _PLAIN:
            values[f"{_TRAINER}//{attribute}"] = value
    return values


def put(trainer: pl.Trainer, changed: Mapping[str, Any]) -> list[str]:
    """Restores what another process has changed.

    Args:
        trainer: Of the fit that resumes.
        changed: Values that `take` returned there.

    Returns:
        The keys of values that this fit has no owner for, or that may not be set.
    """
    module = trainer.lightning_module
    owners: dict[str, Any] = {f"{_TRAINER}/": trainer, f"{_DATA}/": _data(trainer)}
    owners |= {f"{_PARAMETER}/{name}": each for name, each in _named(module.named_parameters())}
    owners |= {f"{_MODULE}/{name}": each for name, each in _named(module.named_modules())}
    owners |= {f"{_CALLBACK}/{key}": callback for key, callback in _callbacks(trainer)}
    owners |= {f"{_OPTIMIZER}/{key}": optimizer for key, optimizer in _optimizers(trainer)}
    lost = []
    for key, value in changed.items():
        name, _, attribute = str(key).rpartition("/")
        owner = owners.get(name)
        if owner is None or type(value) not in _PLAIN or not _may_set(owner, attribute):
            lost.append(str(key))
        elif isinstance(owner, nn.Parameter):
            owner.requires_grad_(bool(value))
        else:
            setattr(owner, attribute, value)
    return lost


def _may_set(owner: object, attribute: str) -> bool:
    """Returns whether an attribute is one that `take` would save, since a file has named it."""
    if isinstance(owner, pl.Trainer):
        return attribute in _TRAINER_SETTINGS
    if isinstance(owner, nn.Parameter):
        return attribute == "requires_grad"
    if isinstance(owner, nn.Module) and attribute in _names_of(owner):
        return False
    if isinstance(owner, Optimizer) and attribute in _OPTIMIZER_NAMES:
        return False
    if isinstance(owner, pl.LightningDataModule) and attribute in _DATA_NAMES:
        return False
    return attribute in _plain(owner) or not hasattr(owner, attribute)


def _plain(owner: object, leave_out: frozenset[str] = frozenset()) -> list[str]:
    own = vars(owner).items()
    return [name for name, value in own if type(value) in _PLAIN and name not in leave_out]


def _names_of(module: nn.Module) -> frozenset[str]:
    """Returns the attributes that belong to torch, Lightning, a wrapper or a metric."""
    if isinstance(module, pl.LightningModule):
        return _LIGHTNING_NAMES
    # FSDP2 gives a module's class a parent of torch's; a wrapper has no other parent.
    own = [cls for cls in type(module).__mro__ if not cls.__module__.startswith(_DISTRIBUTED)]
    packages = {cls.__module__.partition(".")[0] for cls in own}
    # A metric has a state of its own, which Lightning saves and resets.
    is_others = own[0] is nn.Module or "torchmetrics" in packages
    return frozenset(vars(module)) if is_others else _MODULE_NAMES


def _callbacks(trainer: pl.Trainer) -> Iterator[tuple[str, pl.Callback]]:
    """Yields the user's own callbacks that have no `state_dict`, each by a key."""
    every: Any = trainer
    numbers: Counter[str] = Counter()
    for callback in every.callbacks:
        own = [cls for cls in type(callback).__mro__ if cls not in (pl.Callback, object)]
        is_users = not any(cls.__module__.startswith(_LIBRARIES) for cls in own)
        if is_users and type(callback).state_dict is pl.Callback.state_dict:
            name = type(callback).__qualname__
            yield f"{name}-{numbers[name]}", callback
            numbers[name] += 1


def _named(named: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yields modules or parameters by names without wrappers, which differ between strategies."""
    for name, each in named:
        yield ".".join(part for part in name.split(".") if part not in _WRAPPED), each


def _data(trainer: pl.Trainer) -> pl.LightningDataModule | None:
    """Returns the user's datamodule if it has no `state_dict`."""
    data: pl.LightningDataModule | None = getattr(trainer, "datamodule", None)
    keeps_state = type(data).state_dict is not pl.LightningDataModule.state_dict if data else False
    return None if keeps_state else data


def _optimizers(trainer: pl.Trainer) -> Iterator[tuple[str, Optimizer]]:
    """Yields optimizers of the user's own classes, by a key."""
    for key, optimizer in nested(trainer.optimizers).items():
        if not type(optimizer).__module__.startswith(("torch.", "deepspeed.", *_LIBRARIES)):
            yield key, optimizer


_LIBRARIES = ("lightning.", "pytorch_lightning.", "lightning_gaudi.")
_DISTRIBUTED = "torch.distributed."
_WRAPPED = {"_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod"}
# Attributes that DeepSpeed sets on modules (`runtime/zero/parameter_offload.py`,
# `runtime/engine.py`), and FSDP.
_OF_ENGINES = ("_", "ds_", "applied_pre_backward_ref_cnt", "wall_clock_breakdown")
_DATA_NAMES = frozenset(vars(pl.LightningDataModule()))
_MODULE_NAMES = frozenset(vars(nn.Module())) - {_MODE}
# Set by torch itself, in `torch/optim/optimizer.py` and `lr_scheduler.py`.
_OPTIMIZER_NAMES = frozenset(
    {
        "_need_device_dtype_check_for_fused",
        "_opt_called",
        "_step_count",
        "_step_supports_amp_scaling",
        "_warned_capturable_if_run_uncaptured",
    }
)
_LIGHTNING_NAMES = frozenset(vars(pl.LightningModule())) - {_MODE}


Pruned = Mapping[str, Mapping[str, Tensor]]
_MASKS, _FIRST = "masks", "first_weights"


def take_masks(trainer: pl.Trainer) -> dict[str, dict[str, Tensor]]:
    """Returns masks as bool tensors, and the first weights of callbacks, on the CPU by name."""
    masks = {
        f"{name}.{hook._tensor_name}": getattr(each, f"{hook._tensor_name}_mask").bool().cpu()
        for name, each in trainer.lightning_module.named_modules()
        for hook in each._forward_pre_hooks.values()
        if isinstance(hook, prune.BasePruningMethod)
    }
    first = {key: weight.detach().cpu() for key, weight in _first_weights(trainer)}
    return {_MASKS: masks, _FIRST: first}


def put_masks(trainer: pl.Trainer, saved: Pruned) -> None:
    """Prunes a module as another process has pruned it.

    Args:
        trainer: Of a fit; its module's weights are loaded.
        saved: What `take_masks` returned. A warning names masks of weights that this fit has not.
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
