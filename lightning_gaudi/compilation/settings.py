"""The setting for compiling, from argument, callback, environment, or the default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from lightning_gaudi._core.settings import Setting, Wording

VARIABLE = "LIGHTNING_GAUDI_COMPILE"
MODES = ("none", "model", "regions")


@dataclass(frozen=True)
class Compilation:
    """How `torch.compile` is applied to models on an HPU in the vendor's eager mode.

    Raises:
        ValueError: A value is none of those below.
    """

    mode: Literal["none", "model", "regions"] = "regions"
    """`"none"`: each operator is a launch. `"model"`: whole steps, as with
    `trainer.fit(torch.compile(module))`; in Fabric a module's forward. `"regions"`: the blocks that
    repeat, which share graphs, and each largest part beside them."""
    regions: Sequence[str] | None = None
    """Names of the classes of blocks. None finds them: at least two members of one class in a
    ModuleList or a Sequential."""
    options: Mapping[str, Any] | None = None
    """Options of the vendor's compiler, as in `torch.compile(options={...})`."""
    dynamic: bool | None = False
    """As for `torch.compile`. With False, the vendor's default, each new shape is a new graph."""
    recompile_limit: int = 64
    """How many graphs one function may have: one for each shape, in training and in evaluation.
    Four buckets already exceed torch's default of 8."""
    on_give_up: Literal["warn", "error"] = "warn"
    """What happens if a part of a region cannot be traced and runs operator by operator."""
    foreach: bool = True
    """Whether torch's own optimizers step all weights of a group at once, if they have a choice."""

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
    """The compilation of a run, and its origin."""

    compilation: Compilation
    origin: str | None
    """As the user typed it; None for the default."""


def _read(value: Any) -> Compilation | None:
    mode, _, names = value.partition(":") if isinstance(value, str) else (value, "", "")
    if names and mode == "regions":
        return Compilation(regions=[name.strip() for name in names.split(",")])
    return Compilation(mode=value) if value in MODES else None


SETTING = Setting(
    Compilation,
    VARIABLE,
    Wording(
        argument="compile=",
        callback="Compile",
        purpose="what to compile",
        forms=(
            "Pass 'none', 'model', 'regions', 'regions:' and names of classes with commas, or a "
            "Compilation."
        ),
    ),
    _read,
)
"""The setting; without one, `regions` counts."""


def _check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r} is none of {', '.join(map(repr, choices))}.")
