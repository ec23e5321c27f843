"""Reads the file in which `lightning-gaudi verify` has written what it measured of a card.

`LIGHTNING_GAUDI_CARD` names such a file. The simulator takes rules, memory and faults from it, and
a plan takes memory and speeds. It imports nothing of ours, so that all of them can share it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VARIABLE = "LIGHTNING_GAUDI_CARD"
"""The variable of the environment that holds the path of such a file."""

KIND = "lightning-gaudi card"
SCHEMA = 1
"""The version of the file; it grows when a name is removed or gets another meaning."""

FOUND = ("refused", "on_cpu", "waits", "demoted", "as_said", "none")
"""The results that a probe of a rule may have; with "none" the card does as the CPU."""

MODES = ("eager", "lazy")

_MAX_BYTES = 64 * 2**20
_MAX_INTEGER = 2**60


class CardFileError(ValueError):
    """Is raised if a file with measurements cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class MemoryTerms:
    """Holds how a card's allocator counts, in bytes."""

    alignment_bytes: int
    """Requests are rounded up to a multiple of it."""
    header_bytes: int
    """Each request takes so many bytes more."""
    small_bytes: int
    """The largest request that a chunk of the small pool serves, which adds nothing; 0 for none."""
    num_small: int
    """The number of chunks of the small pool."""
    at_start_bytes: int
    """The bytes in use before the first tensor."""
    limit_bytes: int
    """The most that the allocator hands out."""
    workspace_bytes: int = 0
    """The bytes that stay in use after graphs have run, and were free before."""


@dataclass(frozen=True)
class MeasuredCard:
    """Holds the measurements of a file."""

    path: Path
    card: str
    """The generation's key, as "gaudi2"."""
    release: str
    """The release of the Gaudi software, as "1.24.1"."""
    is_simulated: bool
    """Whether it was measured on a simulated card, whose times are those of a CPU."""
    rules: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """One of `FOUND`, by a rule's key and the mode."""
    memory: MemoryTerms | None = None
    """The terms of the allocator; None if they were not measured."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """How the program ended, by a fault's key."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Times and speeds by part, as the file has them."""

    def found(self, rule: str, modes: Iterable[str]) -> str | None:
        """Returns the result of a rule's probe in the first of these modes that it ran in."""
        measured = self.rules.get(rule, {})
        return next((measured[mode] for mode in modes if mode in measured), None)

    def flops(self, dtype: str) -> float | None:
        """Returns the FLOP/s of the fastest product of matrices that was measured in a dtype.

        Args:
            dtype: As "bfloat16", "float32" or "float8_e4m3fn".
        """
        return max(self._speeds("matmuls", "flops", {"dtype": dtype}), default=None)

    def bandwidth(self) -> float | None:
        """Returns the bytes a second of the vector operator that moved most."""
        return max(self._speeds("operators", "bytes_per_s", {}), default=None)

    def link_bandwidth(self, num_cards: int) -> float | None:
        """Returns the bytes a second that a card sent at most in a collective of so many cards."""
        found = self._speeds("collectives", "bytes_per_s", {"num_cards": num_cards})
        return max(found, default=None)

    def launch_seconds(self, mode: str) -> float | None:
        """Returns the seconds in which the host launches one operator, or one graph.

        Args:
            mode: "eager", "compiled" or "lazy".
        """
        return max(self._speeds("launches", "seconds", {"mode": mode}), default=None)

    def step_seconds(self, mode: str) -> dict[str, float]:
        """Returns the seconds of each reference step, of a whole text where one writes it.

        Args:
            mode: "eager" or "lazy".
        """
        rows = [] if self.is_simulated else self._rows("steps", {"mode": mode, "is_small": False})
        return {
            str(each["step"]): float(each["seconds"])
            for each in rows
            if _is_number(each.get("seconds")) and each["seconds"] > 0 and "step" in each
        }

    def compile_seconds(self, mode: str) -> Mapping[int, float]:
        """Returns the time to compile a graph by its number of nodes, in "compiled" or "lazy"."""
        rows = self._rows("compile", {"mode": mode})
        return {int(each["num_nodes"]): each["seconds"] for each in rows if not self.is_simulated}

    def _speeds(self, part: str, name: str, wanted: Mapping[str, Any]) -> list[float]:
        """Returns a figure of all rows of a part that fit; none if times are those of a CPU."""
        rows = [] if self.is_simulated else self._rows(part, wanted)
        return [float(each[name]) for each in rows if _is_number(each.get(name))]

    def _rows(self, part: str, wanted: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        rows: list[Mapping[str, Any]] = self.figures.get(part, [])
        return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def from_environment(environment: Mapping[str, str] = os.environ) -> MeasuredCard | None:
    """Returns the measurements of the file that the environment names; None if it names none.

    Raises:
        CardFileError: The file cannot be used.
    """
    path = environment.get(VARIABLE, "")
    return read(Path(path)) if path else None


def read(path: Path) -> MeasuredCard:
    """Reads a file that `lightning-gaudi verify` has written.

    Raises:
        CardFileError: There is no such file, or it is damaged, or of another version.
    """
    return parse(_text(path), path)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise CardFileError(f"{path} has more than 64 MiB, as no file of measurements has.")
        return path.read_text("utf-8")
    except OSError as error:
        raise CardFileError(
            f"{path} cannot be read ({error.strerror or error}). Name a file that `lightning-gaudi "
            f"verify` has written, or unset {VARIABLE}."
        ) from error
    except UnicodeDecodeError as error:
        raise _damaged(path, "it is no text") from error


def parse(text: str, path: Path) -> MeasuredCard:
    """Returns the measurements in the text of a file.

    Args:
        text: The text, in JSON.
        path: The path of the file, for messages.

    Raises:
        CardFileError: It is damaged, or of another version.
    """
    try:
        found = json.loads(text, parse_constant=lambda name: _refuse(path, name))
    except (ValueError, RecursionError) as error:
        if isinstance(error, CardFileError):
            raise
        raise _damaged(path, f"it is no JSON ({type(error).__name__})") from error
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise CardFileError(
            f"{path} is no file of measurements. Name one that `lightning-gaudi verify` has "
            "written."
        )
    if found.get("schema") != SCHEMA:
        raise CardFileError(
            f"{path} is of version {str(found.get('schema'))[:20]} of the file, and this "
            f"lightning-gaudi reads version {SCHEMA}. Run `lightning-gaudi verify` again with this "
            "one, or use the one that has written it."
        )
    return MeasuredCard(
        path,
        _string(path, found, "card"),
        _string(path, found, "release"),
        found.get("is_simulated") is not False,
        _rules(path, _list(path, found, "rules")),
        _memory(path, found.get("memory")),
        {
            _string(path, each, "key"): _string(path, each, "found")
            for each in _list(path, found, "faults")
        },
        _figures(path, found.get("figures", {})),
    )


def _damaged(path: Path, what: str) -> CardFileError:
    return CardFileError(f"{path} is damaged: {what}. Run `lightning-gaudi verify` again.")


def _refuse(path: Path, name: str) -> None:
    raise _damaged(path, f"{name} is not a finite number")


def _rules(path: Path, rows: list[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    rules: dict[str, dict[str, str]] = {}
    for row in rows:
        key, mode, found = (_string(path, row, name) for name in ("key", "mode", "found"))
        if mode not in MODES or found not in FOUND:
            raise _damaged(path, f"of the rule {key[:60]!r} it says {mode[:20]!r}, {found[:20]!r}")
        rules.setdefault(key, {})[mode] = found
    return rules


def _memory(path: Path, values: Any) -> MemoryTerms | None:
    if values is None:
        return None
    names = list(MemoryTerms.__dataclass_fields__)
    if not isinstance(values, dict) or not set(names[:-1]) <= set(values):
        raise _damaged(path, f"memory must have {', '.join(names)}")
    for name in names:
        value = values.get(name, 0)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not (name == "alignment_bytes") <= value < _MAX_INTEGER:
            raise _damaged(path, f"memory.{name} is {str(value)[:30]!r}")
    return MemoryTerms(**{name: values.get(name, 0) for name in names})


def _figures(path: Path, values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise _damaged(path, "figures are no names with values")
    for part, rows in values.items():
        is_table = isinstance(rows, list) and all(isinstance(each, dict) for each in rows)
        if not is_table or not all(_is_sound(value) for row in rows for value in row.values()):
            raise _damaged(path, f"figures.{part[:30]} is no table of numbers and names")
    return values


def _is_sound(value: Any) -> bool:
    return value is None or isinstance(value, (str, bool)) or _is_number(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _string(path: Path, values: Any, name: str) -> str:
    value = values.get(name) if isinstance(values, dict) else None
    if not isinstance(value, str) or not value.isprintable():
        raise _damaged(path, f"{name} is {str(value)[:30]!r}")
    return value


def _list(path: Path, values: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    rows = values.get(name, [])
    if not isinstance(rows, list) or not all(isinstance(each, dict) for each in rows):
        raise _damaged(path, f"{name} is no list")
    return rows
