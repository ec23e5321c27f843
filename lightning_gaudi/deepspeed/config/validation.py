"""Keys in the user's settings that DeepSpeed does not know.

It ignores them in silence in half of its sections. Which it knows is not written down anywhere, and
changes with its versions: its parser is given the settings in a dict that records what it looks
for, and what it never looked for is unknown.
"""

from __future__ import annotations

import importlib
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lightning_gaudi._core.wording import nearest
from lightning_gaudi.untrusted import printable

from .. import library

# For `deepspeed.initialize`, not for the parser (deepspeed 0.19.8, `deepspeed/__init__.py`).
_OF_INITIALIZE = ("data_parallel_size", "sequence_parallel_size")

# Lightning writes it (2.5.6 to 2.6.6, `_create_default_config`), DeepSpeed no longer reads it.
_OF_LIGHTNING = {"aio": ("thread_count",)}

# The rest depends on the ranks, or on what these name, and is checked where that is known.
_LEFT_OUT = ("train_batch_size", "gradient_accumulation_steps")
_FREE = ("params",)


def check_keys(config: Mapping[str, Any]) -> None:
    """Refuses keys that DeepSpeed does not know.

    Args:
        config: Settings as the user gave them.

    Raises:
        ValueError: There is one; it is named, with the nearest that DeepSpeed knows. Or a value is
            none that DeepSpeed's parser takes.
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
    except Exception as error:  # DeepSpeed computes with values before it looks at their types
        reason = printable(f"{type(error).__name__}: {error}", max_chars=500)
        raise ValueError(
            f"DeepSpeed cannot read its settings ({reason}). Correct the value that this is about."
        ) from error
    recorded.asked.update(_LEFT_OUT, _OF_INITIALIZE)
    for path, others in recorded.unknown():
        raise ValueError(_unknown(path, others))


class _Recorded(dict[str, Any]):
    """A dict that records what is looked for in it, and in the dicts in it."""

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
        # With one of its own, `f(**self)` asks for each item; a plain dict would hand over all.
        return super().__iter__()

    def __copy__(self) -> _Recorded:
        # The parser works on a copy.
        found = _Recorded({})
        found.update(dict.items(self))
        found.asked = self.asked
        return found

    def unknown(self, above: str = "") -> Iterator[tuple[str, set[str]]]:
        """Yields what nobody looked for, as paths, and what was looked for in its place."""
        for name, value in dict.items(self):
            allowed = _OF_LIGHTNING.get(above.rstrip("."), ())
            if name not in self.asked and name not in allowed:
                yield above + name, self.asked
            # One that nobody asked in is given whole to a model that refuses what it does not know.
            if isinstance(value, _Recorded) and value.asked and name not in _FREE:
                yield from value.unknown(f"{above}{name}.")


def _without_auto(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings without `"auto"`, which the parser takes for a value."""
    return {
        name: _without_auto(value) if isinstance(value, Mapping) else value
        for name, value in config.items()
        if value != "auto"
    }


def _rejected(error: Any, config: Mapping[str, Any]) -> str:
    """Returns what to say of the first thing that a section of DeepSpeed's settings refused."""
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
