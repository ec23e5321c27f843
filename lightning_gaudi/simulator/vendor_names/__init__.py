"""Lists the public names of the vendor's Python package, with their arguments and releases.

`names.json` has them by module, `flags.json` the switches that the vendor reads from the
environment, `operators.json` the operators that libraries call. They hold facts about the vendor
alone: what the stand-in makes of a name is found by importing it, and
`docs/reference/vendor-names.md` is made of all three.

Source: Intel Gaudi PyTorch bridge (https://github.com/HabanaAI/gaudi-pytorch-bridge), below
`python_packages/habana_frameworks`, and `scripts/env_flags.yaml`. `read` says where the newest text
of a module was read: release 1.24.1 or 1.24.0; "2025", an undated copy between 1.20 and 1.24, where
those two have none that differs; or 1.19, where there is no later text. 1.20 and 1.22 themselves
could not be read: what 1.19 has is taken for 1.20, and what the copy of 2025 has for 1.22.
"""

from __future__ import annotations

import difflib
import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_gaudi.releases import Release
from lightning_gaudi.simulator.settings import RELEASES

PACKAGE = "habana_frameworks"
_FOLDER = Path(__file__).parent
_NEAR = 0.93
"""The similarity (difflib's ratio) from which on a name is taken for a misspelt one."""


@dataclass(frozen=True)
class Name:
    """A public name of a module."""

    name: str
    kind: str
    """function, class or value."""
    signatures: dict[str, str]
    """The parameters from a release on, as they stand in a `def`; empty where none were read."""
    since: str | None
    """The first of our releases that has it, if not all have."""
    until: str | None
    """The last of our releases that has it, if the newest has not."""
    eager_since: str | None
    """The first of our releases that has it in eager mode too, if there is one."""

    def is_in(self, release: Release, *, is_lazy: bool = True) -> bool:
        """Returns whether a release has the name, in that mode."""
        if self.eager_since and not is_lazy and not _is_between(release, self.eager_since, None):
            return False
        return _is_between(release, self.since, self.until)

    def signature(self, release: Release) -> str | None:
        """Returns its parameters in a release; None where they were not read."""
        return by_release(self.signatures, release) if self.signatures else None


@dataclass(frozen=True)
class Module:
    """A module of the vendor's."""

    name: str
    """Its address below `habana_frameworks`."""
    read: str
    """Where its newest text was read; see above."""
    names: dict[str, Name]
    since: str | None = None
    until: str | None = None

    def is_in(self, release: Release) -> bool:
        """Returns whether a release has the module."""
        return _is_between(release, self.since, self.until)


@dataclass(frozen=True)
class Flag:
    """A switch that the vendor reads from the environment."""

    name: str
    kind: str
    """bool, int or str."""
    defaults: dict[str, Any]
    """The default from a release on."""
    settable: str | None
    """The first of our releases in which a program can set it too."""
    since: str | None = None
    until: str | None = None

    def is_in(self, release: Release) -> bool:
        """Returns whether a release has the switch."""
        return _is_between(release, self.since, self.until)

    def is_settable(self, release: Release) -> bool:
        """Returns whether a program can set it in a release, besides the environment."""
        return self.settable is not None and _is_between(release, self.settable, None)


@dataclass(frozen=True)
class Operator:
    """An operator `torch.ops.hpu.*` that a library calls."""

    name: str
    callers: tuple[str, ...]
    """The libraries, by their names in `CALLERS`."""
    lacks: str | None
    """Why the simulated HPU lacks it, or None: it works."""


CALLERS = {
    "bitsandbytes": "bitsandbytes 0.50",
    "neural_compressor": "neural_compressor 3.10",
}
"""The libraries whose operators are listed, and the versions that were searched. transformers 5.23,
accelerate 1.15, peft 0.21, trl 1.16 and LitGPT 0.5.13 call none."""


@functools.cache
def modules() -> dict[str, Module]:
    """Returns all modules by address below `habana_frameworks`."""
    return {
        name: Module(
            name,
            entry["read"],
            {key: _name(key, value) for key, value in entry["names"].items()},
            entry.get("since"),
            entry.get("until"),
        )
        for name, entry in _read("names.json").items()
    }


@functools.cache
def flags() -> dict[str, Flag]:
    """Returns all switches by name."""
    return {
        name: Flag(
            name,
            entry["kind"],
            _from_the_first(entry["default"]),
            entry.get("settable"),
            entry.get("since"),
            entry.get("until"),
        )
        for name, entry in _read("flags.json").items()
    }


@functools.cache
def operators() -> dict[str, Operator]:
    """Returns all operators that libraries call, by name below `torch.ops.hpu`."""
    return {
        name: Operator(name, tuple(entry["callers"]), entry.get("lacks"))
        for name, entry in _read("operators.json").items()
    }


def misspelt_flag(name: str) -> str | None:
    """Returns the vendor's switch that was probably meant by the name of an unknown variable."""
    if not name.startswith("PT_") or name in flags():
        return None
    return next(iter(difflib.get_close_matches(name, flags(), 1, _NEAR)), None)


def find_module(address: str) -> Module | None:
    """Returns the module of an address such as `habana_frameworks.torch.hpu`, if listed."""
    return modules().get(address.removeprefix(f"{PACKAGE}."))


def by_release(values: dict[str, Any], release: Release) -> Any:
    """Returns a release's value, out of values by the release from which on they hold."""
    return [value for key, value in values.items() if _is_between(release, key, None)][-1]


def _is_between(release: Release, since: str | None, until: str | None) -> bool:
    is_late_enough = since is None or release.number >= RELEASES[since].number
    return is_late_enough and (until is None or release.number <= RELEASES[until].number)


def _read(file: str) -> dict[str, Any]:
    return json.loads(_FOLDER.joinpath(file).read_text())  # type: ignore[no-any-return]


def _name(name: str, entry: dict[str, Any]) -> Name:
    signature = entry.get("signature")
    return Name(
        name,
        entry["kind"],
        {} if signature is None else _from_the_first(signature),
        entry.get("since"),
        entry.get("until"),
        entry.get("eager_since"),
    )


def _from_the_first(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {next(iter(RELEASES)): value}
