"""Finds what the package that stands in has of the vendor's names, by importing it.

`python -m lightning_gaudi.simulator.vendor_names.found` prints it as JSON, for the release and the
mode that the environment asks for.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from dataclasses import asdict, dataclass
from typing import Any

from lightning_gaudi.releases import Release
from lightning_gaudi.simulator import vendor_names
from lightning_gaudi.simulator.settings import read_release


@dataclass(frozen=True)
class Found:
    """A listed name as the stand-in has it."""

    module: str
    """Its address below `habana_frameworks`."""
    name: str
    """Empty for the module itself."""
    refusal: str | None = None
    """The reason for which it refuses to work; None if it works."""
    problem: str | None = None
    """How it differs from the vendor's; None if it does not."""


def find_all() -> list[Found]:
    """Looks up all names of the simulated release."""
    release = read_release()
    return [
        found
        for module in vendor_names.modules().values()
        if module.is_in(release)
        for found in _find_in(module, release)
    ]


def _find_in(module: vendor_names.Module, release: Release) -> list[Found]:
    try:
        owner = importlib.import_module(f"{vendor_names.PACKAGE}.{module.name}")
    except Exception as error:
        return [Found(module.name, "", problem=f"cannot be imported: {error!r}")]
    offered = [name for name in module.names.values() if name.is_in(release, is_lazy=_is_lazy())]
    return [_find(owner, module.name, name, release) for name in offered] or [
        Found(module.name, "", refusal=None if hasattr(owner, "__file__") else owner.__doc__)
    ]


def _is_lazy() -> bool:
    return bool(importlib.import_module(f"{vendor_names.PACKAGE}._release").is_lazy())


def _find(owner: Any, module: str, name: vendor_names.Name, release: Release) -> Found:
    try:
        value = getattr(owner, name.name)
    except NotImplementedError as error:
        reason = str(error).partition("on the simulated HPU. ")[2].partition(" What is sim")[0]
        return Found(module, name.name, refusal=reason)
    except AttributeError:
        return Found(module, name.name, problem="is not there")
    refusal = inspect.getattr_static(value, "__refused__", None)
    if refusal is not None:
        return Found(module, name.name, refusal=refusal)
    return Found(module, name.name, problem=_problem(value, name.signature(release)))


def _problem(value: Any, listed: str | None) -> str | None:
    """Returns how its parameters differ from the vendor's, or None: calls written for those fit."""
    if listed is None or not callable(value):
        return None
    try:
        ours = inspect.signature(value)
    except ValueError:
        # A compiled function may have no signature that Python can read.
        return None
    plain = [p for p in _parameters(listed) if p.kind is not p.VAR_KEYWORD]
    by_position = [p for p in plain if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = [p for p in plain if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p.name for p in by_name if p.default is p.empty]
    try:
        # Callers pass what they can by position, or all by name, or only what has no default: each
        # has to fit our parameters.
        ours.bind(*[None] * len(by_position), **{p.name: None for p in by_name[len(by_position) :]})
        ours.bind(**dict.fromkeys(p.name for p in by_name))
        ours.bind(**dict.fromkeys(needed))
    except TypeError as error:
        return f"takes {ours}, the vendor's takes ({listed}): {error}"
    return None


def _parameters(listed: str) -> list[inspect.Parameter]:
    """Returns the parameters of a `def`, with None for each default."""
    function = ast.parse(f"lambda {listed}: None", mode="eval")
    assert isinstance(function.body, ast.Lambda)
    arguments = function.body.args
    # The vendor's defaults name objects of its package, which `eval` would not find.
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [default and ast.Constant(None) for default in arguments.kw_defaults]
    return list(inspect.signature(eval(ast.unparse(function))).parameters.values())


if __name__ == "__main__":
    import torch  # noqa: F401  (starts the simulator)

    print(json.dumps([asdict(found) for found in find_all()]))
