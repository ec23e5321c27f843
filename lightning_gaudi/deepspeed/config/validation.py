"""Finds keys in the user's settings that DeepSpeed does not know.

DeepSpeed silently ignores them in half of its sections. There is no list of the keys that it knows,
and they change with its versions. So its parser gets the settings in a dict that records which keys
it asks for; those that it never asks for are unknown.
"""

from __future__ import annotations

import importlib
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lightning_gaudi._core.wording import nearest
from lightning_gaudi.untrusted import printable

from .. import library

# Read by `deepspeed.initialize` and not by the parser (deepspeed 0.19.8, `deepspeed/__init__.py`).
_OF_INITIALIZE = ("data_parallel_size", "sequence_parallel_size")

# Written by Lightning (2.5.6 to 2.6.6, `_create_default_config`), but no longer read by DeepSpeed.
_OF_LIGHTNING = {"aio": ("thread_count",)}

# These depend on the number of ranks, and are checked where that is known.
_LEFT_OUT = ("train_batch_size", "gradient_accumulation_steps")
_FREE = ("params",)


def check_keys(config: Mapping[str, Any]) -> None:
    """Refuses keys that DeepSpeed does not know.

    Args:
        config: Settings as the user gave them.

    Raises:
        ValueError: There is one, which is named along with the nearest that DeepSpeed knows; or
            DeepSpeed's parser refuses a value.
    """
    library.load()
    parser = importlib.import_module("deepspeed.runtime.config").DeepSpeedConfig
    validation_error = importlib.import_module("pydantic").ValidationError
    known = {name: value for name, value in config.items() if name not in _LEFT_OUT}
    recorded = _Recorded({**_without_auto(known), "train_micro_batch_size_per_gpu": 1})
    try:
        parser(recorded)
    except validation_error as error:
        raise ValueError(_rejected(error, known)) from error
    # DeepSpeed computes with values before it checks their types, so anything may be raised.
    except Exception as error:
        reason = printable(f"{type(error).__name__}: {error}", max_chars=500)
        raise ValueError(
            f"DeepSpeed cannot read its settings ({reason}). Correct the value that this is about."
        ) from error
    recorded.asked.update(_LEFT_OUT, _OF_INITIALIZE)
    for path, others in recorded.unknown():
        raise ValueError(_unknown(path, others))


class _Recorded(dict[str, Any]):
    """A dict that records the keys that are asked for in it and in its inner dicts."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(
            {k: _Recorded(v) if isinstance(v, Mapping) else v for k, v in values.items()}
        )
        self.asked: set[str] = set()

    def __contains__(self, name: Any) -> bool:
        self.asked.add(name)
        return super().__contains__(name)

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        self.asked.add(name)
        return super().pop(name, *default)

    def keys(self) -> Any:
        return self

    def __iter__(self) -> Iterator[str]:
        # For a subclass with an `__iter__` of its own, `f(**self)` asks for each key; from a plain
        # dict CPython would copy all items at once.
        return super().__iter__()

    def __copy__(self) -> _Recorded:
        # The parser works on a copy, whose requests count, too.
        found = _Recorded({})
        found.update(dict.items(self))
        found.asked = self.asked
        return found

    def unknown(self, above: str = "") -> Iterator[tuple[str, set[str]]]:
        """Yields the paths of keys that were not asked for, and the keys that were."""
        for name, value in dict.items(self):
            allowed = _OF_LIGHTNING.get(above.rstrip("."), ())
            if name not in self.asked and name not in allowed:
                yield above + name, self.asked
            # A section in which nothing was asked for goes to a pydantic model as a whole, which
            # refuses unknown keys itself.
            if isinstance(value, _Recorded) and value.asked and name not in _FREE:
                yield from value.unknown(f"{above}{name}.")


def _without_auto(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings without `"auto"`, which the parser would take for a value."""
    return {
        name: _without_auto(value) if isinstance(value, Mapping) else value
        for name, value in config.items()
        if value != "auto"
    }


def _rejected(error: Any, config: Mapping[str, Any]) -> str:
    """Returns a message on the first value that a section of DeepSpeed's settings refuses."""
    first = error.errors()[0]
    place = first["loc"] or (error.title,)  # of a section as a whole it has none
    sections = [name for name, value in config.items() if isinstance(value, Mapping)]
    path = ".".join(
        map(str, [*[name for name in sections if place[0] in config[name]][:1], *place])
    )
    if first["type"] != "extra_forbidden":
        return (
            f"{path}={_shown(first['input'])} in DeepSpeed's settings is not valid: "
            f"{first['msg']}. Correct it."
        )
    base = importlib.import_module("deepspeed.runtime.config_utils").DeepSpeedConfigModel
    fields = [
        name
        for model in _below(base)
        if model.__name__ == error.title
        for name, field in model.model_fields.items()
        for name in (name, field.alias)
        if name
    ]
    return _unknown(path, fields)


def _shown(value: Any) -> str:
    return printable(reprlib.repr(value), max_chars=200)


def _below(kind: Any) -> Iterator[Any]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)


def _unknown(path: str, others: Iterable[str]) -> str:
    parent, _, name = path.rpartition(".")
    near = nearest(name, sorted(others))
    place = f" in {parent!r}" if parent else ""
    way_out = f"Did you mean {near!r}?" if near else "Remove it, or correct its name."
    return f"DeepSpeed knows no setting {name!r}{place} and would ignore it. {way_out}"
