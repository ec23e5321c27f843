"""Reads DeepSpeed's settings, and completes them from those of the Trainer.

A setting that both have must be equal. `"auto"`, as Hugging Face's Trainer writes it, stands for
Lightning's value, or for DeepSpeed's default in sizes of buckets.
"""

from __future__ import annotations

import copy
import json
import math
import os
import re
import reprlib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_gaudi.untrusted import check_depth, printable

from .presets import PRESETS

Config = dict[str, Any]
_AUTO = "auto"
LOSS_SCALING = (
    "loss_scale",
    "initial_scale_power",
    "loss_scale_window",
    "hysteresis",
    "min_loss_scale",
)
"""Arguments of Lightning's strategies that are settings of DeepSpeed's section `fp16`."""

_SECTION_OF = {"bf16-mixed": "bf16", "bf16-true": "bf16", "16-mixed": "fp16", "16-true": "fp16"}


_CLIPPING = "gradient_clipping"
_WHOLE = ("gradient_accumulation_steps", "train_batch_size", "train_micro_batch_size_per_gpu")
"""Settings that are whole numbers, or `"auto"`."""
_SECTIONS = (
    *("bf16", "fp16", "zero_optimization", "timers", "timers.throughput"),
    *("optimizer", "optimizer.params", "scheduler", "scheduler.params"),
)
"""Settings that are mappings; each comes after the one that contains it."""


def read(config: str | os.PathLike[str] | Mapping[str, Any] | None, variable: str) -> Config | None:
    """Returns the settings as a new dict.

    Args:
        config: A dict, the path of a JSON or YAML file, the name of a preset, or None.
        variable: The variable of the environment that names a file or preset where `config` is
            None.

    Returns:
        The settings; None if there are none.

    Raises:
        FileNotFoundError: There is neither such a file nor such a preset.
        ValueError: The file does not hold a dict, or holds one key twice.
    """
    source = f"{variable}=" if config is None else "config="
    config = os.environ.get(variable) if config is None else config
    if config is None:
        return None
    if isinstance(config, Mapping):
        return copy.deepcopy(dict(config))
    if str(config) in PRESETS:
        return copy.deepcopy(PRESETS[str(config)])
    path = Path(config)
    if not path.is_file():
        raise FileNotFoundError(
            f"{source}{str(config)!r} is neither a file nor a preset. Pass the path of a JSON or "
            f"YAML file, or one of {', '.join(map(repr, PRESETS))}."
        )
    return _parse(path, f"{source}{str(config)!r}")


def _parse(path: Path, typed: str) -> Config:
    try:
        text = path.read_text("utf-8")
        if path.suffix in (".yaml", ".yml"):
            found = yaml.load(text, _Loader)
        else:
            found = json.loads(text, object_pairs_hook=_without_twins)
        check_depth(found)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(
            f"{typed} cannot be read: {printable(error, lines=True)}. Correct the file."
        ) from error
    if not isinstance(found, dict):
        raise ValueError(
            f"{typed} holds a {type(found).__name__}. DeepSpeed's settings are a dict: "
            "{'zero_optimization': {'stage': 3}}, for example."
        )
    return found


def _without_twins(pairs: list[tuple[str, Any]]) -> Config:
    names = [name for name, _ in pairs]
    twins = sorted({str(name) for name in names if names.count(name) > 1})
    if twins:
        raise ValueError(f"{', '.join(map(repr, twins))} is there twice")
    return dict(pairs)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads 1e-5 as a number, which YAML 1.1 takes for a string since it has no point."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Config:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if lists := [key for key in keys if not isinstance(key, Hashable)]:
            raise ValueError(f"{reprlib.repr(lists[0])} is a key, and should be a name")
        _without_twins([(key, None) for key in keys])
        found: Config = super().construct_mapping(node, deep)
        return found


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


@dataclass(frozen=True)
class Settings:
    """Lightning's settings, with which DeepSpeed's have to agree."""

    precision: str
    """Such as `"bf16-mixed"`."""
    world_size: int
    accumulated: int | None = None
    """`accumulate_grad_batches`; None in Fabric, where the loop or the settings accumulate."""
    clip_val: float | None = None
    """`gradient_clip_val`."""
    micro_batch_size: Callable[[], int] = lambda: 1
    """Returns the samples in a rank's batch; called only if the settings do not say."""
    num_steps: Callable[[], int | float] | None = None
    """Returns the optimizer's steps in the whole training; called only if a scheduler needs it."""
    fp16: Mapping[str, Any] = field(default_factory=dict)
    """The settings of loss scaling in fp16."""


def complete(config: Mapping[str, Any], settings: Settings) -> Config:
    """Returns DeepSpeed's settings, completed from Lightning's.

    Args:
        config: As the user gave them; not changed.
        settings: Lightning's.

    Raises:
        MisconfigurationException: Both set the same thing, to different values.
        ValueError: `"auto"` stands for something that Lightning does not have.
    """
    found = copy.deepcopy(dict(config))
    _check_types(found)
    _set_accumulation(found, settings)
    _set_clipping(found, settings)
    _set_batch_sizes(found, settings)
    _set_precision(found, settings)
    _set_schedule(found, settings)
    _set_timers(found)
    zero = found.get("zero_optimization")
    if isinstance(zero, dict):
        found["zero_optimization"] = {k: v for k, v in zero.items() if v != _AUTO}
    return found


def _check_types(config: Mapping[str, Any]) -> None:
    """Refuses values of a wrong type that are used in this module.

    Raises:
        ValueError: There is one, which is named along with the right type.
    """
    for name in _WHOLE:
        value = _given(config, name)
        if value is not None and (type(value) is not int or value < 1):
            raise _wrong(name, value, "a whole number above 0")
    value = _given(config, _CLIPPING)
    if value is not None and (type(value) not in (int, float) or not 0 <= value < math.inf):
        raise _wrong(_CLIPPING, value, "a number that is not negative")
    for path in _SECTIONS:
        above, _, name = path.rpartition(".")
        value = (config.get(above) or {} if above else config).get(name)
        is_right = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
        if value is not None and not is_right:
            raise _wrong(path, value, "a mapping of names to values")


def _wrong(name: str, value: Any, expected: str) -> ValueError:
    shown = printable(reprlib.repr(value), max_chars=200)
    return ValueError(
        f"{name}={shown} in DeepSpeed's settings should be {expected}. Correct it, or leave it out."
    )


def _given(config: Mapping[str, Any], name: str) -> Any:
    """Returns the user's value of `name`; None if it is missing or `"auto"`."""
    value = config.get(name)
    return None if value == _AUTO else value


def _set_accumulation(config: Config, settings: Settings) -> None:
    name, ours = "gradient_accumulation_steps", settings.accumulated
    given = _given(config, name)
    if None not in (given, ours) and given != ours:
        raise MisconfigurationException(
            f"{name}={given} in DeepSpeed's settings, but accumulate_grad_batches={ours} in the "
            f"Trainer's. Remove DeepSpeed's, and pass Trainer(accumulate_grad_batches={given}) if "
            "that is what you want."
        )
    config[name] = given or ours or 1


def _set_clipping(config: Config, settings: Settings) -> None:
    name, ours = _CLIPPING, settings.clip_val
    given = _given(config, name)
    if given is not None and ours is not None and given != ours:
        raise MisconfigurationException(
            f"{name}={given} in DeepSpeed's settings, but gradient_clip_val={ours} in the "
            "Trainer's. Set one of them."
        )
    config[name] = next((value for value in (given, ours) if value is not None), 0.0)


def _set_batch_sizes(config: Config, settings: Settings) -> None:
    whole, part = "train_batch_size", "train_micro_batch_size_per_gpu"
    global_size = _given(config, whole)
    # Left out of the result, since DeepSpeed computes it from the other two settings.
    config.pop(whole, None)
    num_parts = config["gradient_accumulation_steps"] * settings.world_size
    size = _given(config, part)
    if size is None:
        is_known = global_size is not None and global_size % num_parts == 0
        size = global_size // num_parts if is_known else settings.micro_batch_size()
    config[part] = size
    if global_size is not None and global_size != size * num_parts:
        raise MisconfigurationException(
            f"{whole}={global_size} in DeepSpeed's settings, but {settings.world_size} cards with "
            f"{size} samples each and {config['gradient_accumulation_steps']} accumulated batches "
            f"make {size * num_parts}. Remove it, or change {part}, accumulate_grad_batches or the "
            "number of cards."
        )


def _set_precision(config: Config, settings: Settings) -> None:
    wanted = _SECTION_OF.get(settings.precision)
    for name in ("bf16", "fp16"):
        section = dict(config.get(name) or {})
        given = _given(section, "enabled")
        if given is not None and bool(given) != (name == wanted):
            raise MisconfigurationException(
                f"{name}={{'enabled': {given}}} in DeepSpeed's settings, but precision="
                f"{settings.precision!r} in Lightning's. Remove DeepSpeed's, or pass "
                f"precision={_other_precision(name, given=bool(given))}."
            )
        if name == wanted:
            defaults = settings.fp16 if name == "fp16" else {}
            config[name] = {**defaults, **section, "enabled": True}
        elif name in config:
            config[name] = {**section, "enabled": False}


def _other_precision(name: str, *, given: bool) -> str:
    if not given:
        return "'32-true'"
    return "'bf16-mixed'" if name == "bf16" else "'16-mixed'"


def _set_timers(config: Config) -> None:
    """Keeps DeepSpeed from waiting for the device twice in each step to time it.

    It does so by default, for a throughput that it logs at a level which Lightning turns off.
    """
    timers = dict(config.get("timers") or {})
    timers["throughput"] = {"synchronized": False, **(timers.get("throughput") or {})}
    config["timers"] = timers


def _set_schedule(config: Config, settings: Settings) -> None:
    for name in ("optimizer", "scheduler"):
        params = (config.get(name) or {}).get("params") or {}
        for key in [key for key, value in params.items() if value == _AUTO]:
            if name == "scheduler" and key == "total_num_steps" and settings.num_steps is not None:
                params[key] = settings.num_steps()
                continue
            raise ValueError(
                f"{name}.params.{key}='auto' in DeepSpeed's settings is for Hugging Face's "
                f"Trainer; Lightning has no such setting. Write a number, or remove {name!r} and "
                "return it from configure_optimizers."
            )
