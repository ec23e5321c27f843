"""The methods of Lightning that our classes override, and its private functions that we call.

What an override leaves out or relies on was read from a certain source; a new one may do more.
tests/patches/test_register.py holds what we wrap.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

import lightning_gaudi
from lightning_gaudi._core import mirror
from tests.helpers.lightning_sources import KNOWN

_OURS = lightning_gaudi.__name__
_ROLES = {
    "lightning.pytorch": "trainer",
    "pytorch_lightning": "trainer",
    "lightning.fabric": "fabric",
    "lightning_fabric": "fabric",
}

REPLACED = (
    "trainer.callbacks.pruning.ModelPruning.on_save_checkpoint",
    "trainer.callbacks.pruning.ModelPruning.setup",
    "trainer.loops.fit_loop._FitLoop.on_advance_start",
    "trainer.loops.fit_loop._FitLoop.on_advance_end",
    "trainer.loops.training_epoch_loop._TrainingEpochLoop._broadcast_sigterm_tensor",
    "trainer.trainer.connectors.signal_connector._SignalConnector._sigterm_notifier_fn",
    "trainer.strategies.launchers.subprocess_script._SubprocessScriptLauncher._call_children_scripts",
    "fabric.strategies.launchers.subprocess_script._SubprocessScriptLauncher._call_children_scripts",
)
"""Methods that we replace on instances, or call, so that no class of ours shows them."""


def _modules(family: mirror.Family) -> Iterator[ModuleType]:
    """Our modules that are written against Lightning, as `family` has them."""
    for folder in lightning_gaudi.__path__:
        for info in pkgutil.walk_packages([folder], f"{_OURS}."):
            if mirror.is_mirrored(info.name.split(".")[1]):
                yield importlib.import_module(info.name.replace(_OURS, family.ours, 1))


def _relied_on(family: mirror.Family) -> dict[str, Any]:
    """Lightning's "module.Class.method" or "module._function", by role, -> the function."""
    found = {name: _resolve(name, family) for name in REPLACED}
    for module in _modules(family):
        found |= {_name(function): function for function in _private_imports(module, family)}
        for ours in vars(module).values():
            if inspect.isclass(ours) and ours.__module__ == module.__name__:
                found |= _overridden(ours, family)
    return found


def _resolve(name: str, family: mirror.Family) -> Any:
    role, _, rest = name.partition(".")
    module, cls, method = rest.rsplit(".", 2)
    package = family.trainer if role == "trainer" else family.fabric
    return getattr(getattr(importlib.import_module(f"{package}.{module}"), cls), method)


def _private_imports(module: ModuleType, family: mirror.Family) -> Iterator[Any]:
    for name, value in vars(module).items():
        is_theirs = getattr(value, "__module__", "").startswith((family.trainer, family.fabric))
        if is_theirs and name.startswith("_") and inspect.isfunction(value):
            yield value


def _overridden(ours: type, family: mirror.Family) -> dict[str, Any]:
    """What `ours` overrides, itself or through a base of ours that comes before Lightning's."""
    found = {}
    is_ours = [base for base in ours.__mro__ if base.__module__.startswith(f"{family.ours}.")]
    for name in {name: None for base in is_ours for name in vars(base)}:
        bases = [base for base in ours.__mro__ if name in vars(base)]
        theirs = [b for b in bases if b.__module__.startswith((family.trainer, family.fabric))]
        is_overridden = bases[0] in is_ours and theirs
        function = _function(vars(theirs[0])[name]) if is_overridden else None
        if function is not None and _does_something(function):
            found[f"{_short(theirs[0].__module__)}.{theirs[0].__qualname__}.{name}"] = function
    return found


def _function(attribute: Any) -> Any:
    """The function behind a method of any kind; None for other attributes."""
    for wrapped in ("__func__", "fget", "func"):
        attribute = getattr(attribute, wrapped, attribute)
    return attribute if inspect.isfunction(attribute) else None


def _does_something(function: Any) -> bool:
    """False for a hook that Lightning leaves empty."""
    (node,) = ast.parse(dedent(inspect.getsource(inspect.unwrap(function)))).body
    assert isinstance(node, ast.FunctionDef)
    return any(
        not isinstance(statement, (ast.Expr, ast.Pass))
        or isinstance(getattr(statement, "value", None), ast.Call)
        for statement in node.body
    )


def _name(function: Any) -> str:
    return f"{_short(function.__module__)}.{function.__qualname__}"


def _short(text: str) -> str:
    """The same text for both families."""
    for name, role in _ROLES.items():
        text = text.replace(name, role)
    return text


def source_hash(function: Any) -> str:
    """The hash of a function's source, the same one in both families."""
    source = _short(inspect.getsource(inspect.unwrap(function)))
    return hashlib.sha256(source.encode()).hexdigest()[:12]


@pytest.mark.parametrize("family", mirror.FAMILIES, ids=lambda family: family.trainer)
def test_each_function_relied_on_is_one_we_know(family: mirror.Family) -> None:
    """On a mismatch, read what Lightning changed and what ours does; then add the hash."""
    digests = {name: source_hash(function) for name, function in _relied_on(family).items()}
    unknown = {n: digest for n, digest in digests.items() if digest not in KNOWN.get(n, ())}
    lines = [f'"{name}": ["{digest}"],' for name, digest in sorted(unknown.items())]
    assert not unknown, "\n".join(
        ["read these, then add to tests/helpers/lightning_sources.py:", *lines]
    )


def test_the_list_has_no_function_that_we_do_not_rely_on() -> None:
    """For the installed Lightning; an older one may lack a method that a later one has."""
    assert sorted(set(KNOWN) - set(_relied_on(mirror.LIGHTNING))) == []
