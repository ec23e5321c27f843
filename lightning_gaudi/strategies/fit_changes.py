"""What hooks and callbacks change in a fit that no checkpoint of Lightning's keeps.

Whether a weight trains, the dropout of a layer, the factor of a loss: a fit that resumes begins
with what the code has set, and the hook that changed it ran in another process. What differs from
the fit's beginning is kept; what was the code's stays the code's. Numbers and flags alone: a text
may be a path, and no checkpoint decides where files are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import lightning.pytorch as pl
from torch import nn

Values = dict[str, Any]
"""Plain values by "kind/owner/attribute", as "module/net.1/p"."""

_PARAMETER, _MODULE, _CALLBACK, _TRAINER = "parameter", "module", "callback", "trainer"
_TRAINER_SETTINGS = ("accumulate_grad_batches", "gradient_clip_val")
_PLAIN = (bool, int, float, type(None))
_MODE = "training"


def take(trainer: pl.Trainer, *, has_own_attributes: bool) -> Values:
    """The values as they are now.

    Args:
        trainer: Of the fit.
        has_own_attributes: Whether the modules' attributes are what their classes have set; an
            engine that shards them keeps its own there.
    """
    module = trainer.lightning_module
    values: Values = {
        f"{_PARAMETER}/{name}/requires_grad": each.requires_grad
        for name, each in module.named_parameters()
    }
    for name, each in module.named_modules():
        if has_own_attributes or each is module:
            for attribute in _plain(each, leave_out=_names_of(each)):
                values[f"{_MODULE}/{name}/{attribute}"] = getattr(each, attribute)
    validated = trainer.fit_loop.epoch_loop.val_loop
    if trainer.validating:
        # The modules are being evaluated, and will be as they were.
        for name, mode in validated._module_mode.mode.items():
            if f"{_MODULE}/{name}/{_MODE}" in values:
                values[f"{_MODULE}/{name}/{_MODE}"] = mode
    for key, callback in _callbacks(trainer):
        for attribute in _plain(callback):
            values[f"{_CALLBACK}/{key}/{attribute}"] = getattr(callback, attribute)
    for attribute in _TRAINER_SETTINGS:
        if type(value := getattr(trainer, attribute)) in _PLAIN:
            values[f"{_TRAINER}//{attribute}"] = value
    return values


def put(trainer: pl.Trainer, changed: Mapping[str, Any]) -> list[str]:
    """Change what another process has changed.

    Args:
        trainer: Of the fit that resumes.
        changed: Values that `take` returned there.

    Returns:
        The keys of those whose owners this fit has not.
    """
    module = trainer.lightning_module
    owners: dict[str, Any] = {f"{_TRAINER}/": trainer}
    owners |= {f"{_PARAMETER}/{name}": each for name, each in module.named_parameters()}
    owners |= {f"{_MODULE}/{name}": each for name, each in module.named_modules()}
    owners |= {f"{_CALLBACK}/{key}": callback for key, callback in _callbacks(trainer)}
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
    """Whether an attribute is one of those that `take` looks at: a file has named it."""
    if isinstance(owner, pl.Trainer):
        return attribute in _TRAINER_SETTINGS
    if isinstance(owner, nn.Parameter):
        return attribute == "requires_grad"
    if isinstance(owner, nn.Module) and attribute in _names_of(owner):
        return False
    return attribute in _plain(owner) or not hasattr(owner, attribute)


def _plain(owner: object, leave_out: frozenset[str] = frozenset()) -> list[str]:
    own = vars(owner).items()
    return [name for name, value in own if type(value) in _PLAIN and name not in leave_out]


def _names_of(module: nn.Module) -> frozenset[str]:
    """What of its attributes is torch's, Lightning's, a wrapper's or a metric's own business."""
    if isinstance(module, pl.LightningModule):
        return _LIGHTNING_NAMES
    packages = {cls.__module__.partition(".")[0] for cls in type(module).__mro__}
    is_wrapper = type(module).__module__.startswith("torch.distributed.")
    return frozenset(vars(module)) if "torchmetrics" in packages or is_wrapper else _MODULE_NAMES


def _callbacks(trainer: pl.Trainer) -> Iterator[tuple[str, pl.Callback]]:
    """The user's own that keep no state of themselves, by a key."""
    every: Any = trainer
    numbers: Counter[str] = Counter()
    for callback in every.callbacks:
        own = [cls for cls in type(callback).__mro__ if cls not in (pl.Callback, object)]
        is_users = not any(cls.__module__.startswith(_LIBRARIES) for cls in own)
        if is_users and type(callback).state_dict is pl.Callback.state_dict:
            name = type(callback).__qualname__
            yield f"{name}-{numbers[name]}", callback
            numbers[name] += 1


_LIBRARIES = ("lightning.", "pytorch_lightning.", "lightning_gaudi.")
_MODULE_NAMES = frozenset(vars(nn.Module())) - {_MODE}
_LIGHTNING_NAMES = frozenset(vars(pl.LightningModule())) - {_MODE}
