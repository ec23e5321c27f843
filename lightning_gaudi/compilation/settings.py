"""The switch for compiling, and who sets it: argument, callback, environment, or nobody."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

VARIABLE = "LIGHTNING_GAUDI_COMPILE"
MODES = ("none", "model", "regions")


@dataclass(frozen=True)
class Compilation:
    """How `torch.compile` is applied to what trains on an HPU in the vendor's eager mode.

    Raises:
        ValueError: A value is none of those below.
    """

    mode: Literal["none", "model", "regions"] = "regions"
    """`"none"`: each operator is a launch. `"model"`: whole steps, as with
    `trainer.fit(torch.compile(module))`; in Fabric a module's forward. `"regions"`: the blocks that
    repeat, which share graphs, and each largest part beside them."""
    regions: Sequence[str] | None = None
    """Names of the classes of blocks; None finds them: members of one class, at least two, of a
    ModuleList or a Sequential."""
    options: Mapping[str, Any] | None = None
    """Those of the vendor's compiler, as in `torch.compile(options={...})`."""
    dynamic: bool | None = False
    """As for `torch.compile`. False: each new shape is a new graph, as the vendor has it."""
    recompile_limit: int = 64
    """How many graphs one function may have, one for each shape, in training and in evaluation;
    torch's 8 are passed by four buckets."""
    on_give_up: Literal["warn", "error"] = "warn"
    """What happens where a part of a region cannot be traced and runs operator by operator."""
    foreach: bool = True
    """Whether torch's own optimizers step all weights of a group at once, where they may choose."""

    def __post_init__(self) -> None:
        """Checks the values."""
        _check_choice("mode", self.mode, MODES)
        _check_choice("on_give_up", self.on_give_up, ("warn", "error"))
        if isinstance(self.regions, str) or not all(
            isinstance(name, str) for name in self.regions or ()
        ):
            raise ValueError(f"regions={self.regions!r} is no list of names of classes.")
        if self.regions is not None and not self.regions:
            raise ValueError("regions=[] names no class. Leave it out to have blocks found.")
        if self.regions is not None and self.mode != "regions":
            raise ValueError(
                f"regions={list(self.regions)} are for mode='regions', but mode={self.mode!r}."
            )
        if isinstance(self.recompile_limit, bool) or not (
            isinstance(self.recompile_limit, int) and self.recompile_limit > 0
        ):
            raise ValueError(
                f"recompile_limit={self.recompile_limit!r} is no number of graphs. Pass 1 or more."
            )


class Choice(NamedTuple):
    """What holds for a run, and who says so."""

    compilation: Compilation
    origin: str | None
    """As the user typed it; None for the default."""


def parse(value: Any, origin: str) -> Compilation | None:
    """Returns what a user wrote.

    Args:
        value: One of `MODES`, `"regions:"` and names of classes, a mapping of the fields of
            `Compilation`, one of these, or None.
        origin: Where it was set, for messages.

    Raises:
        ValueError: It is none of these, or has a wrong value.
    """
    if value is None or isinstance(value, Compilation):
        return value
    try:
        if isinstance(value, Mapping):
            _check_names(value)
            return Compilation(**value)
        if isinstance(value, str):
            mode, _, names = value.partition(":")
            if names and mode == "regions":
                return Compilation(regions=[name.strip() for name in names.split(",")])
            if value in MODES:
                return Compilation(mode=value)  # type: ignore[arg-type]
        raise ValueError(
            "Pass 'none', 'model', 'regions', 'regions:' and names of classes with commas, or a "
            "Compilation."
        )
    except ValueError as error:
        raise ValueError(f"{origin}: {value!r} says not what to compile. {error}") from error


def from_environment() -> Compilation | None:
    """Returns what `LIGHTNING_GAUDI_COMPILE` says, None if it is not set.

    Raises:
        ValueError: It says nothing that we know.
    """
    return parse(os.environ.get(VARIABLE) or None, VARIABLE)


def choose(argument: Compilation | None, callback: Compilation | None) -> Choice:
    """What holds: the argument of the strategy, else the callback's, the environment's, regions."""
    if argument is not None:
        return Choice(argument, "compile=")
    if callback is not None:
        return Choice(callback, "the callback Compile")
    variable = from_environment()
    if variable is not None:
        return Choice(variable, VARIABLE)
    return Choice(Compilation(), None)


def _check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r} is none of {', '.join(map(repr, choices))}.")


def _check_names(value: Mapping[str, Any]) -> None:
    known = [field.name for field in fields(Compilation)]
    if unknown := [name for name in value if name not in known]:
        raise ValueError(f"There is no {unknown[0]!r}. Its names are {', '.join(known)}.")
