"""The table of strategies is what the classes, the registries and the packages say."""

from __future__ import annotations

import ast
import importlib
from typing import Any

import pytest

from lightning_gaudi._core import mirror
from lightning_gaudi.strategy_table import EXPORTS, STRATEGIES, Strategy, names_of
from tests.helpers.rooms import PACKAGE

ROLES = ("strategies", "fabric.strategies")


@pytest.mark.parametrize("each", STRATEGIES, ids=lambda each: each.kind)
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("family", mirror.FAMILIES, ids=lambda family: family.trainer)
def test_a_line_is_a_class(family: mirror.Family, role: str, each: Strategy) -> None:
    package = family.find(role)
    kind = getattr(package, each.kind)
    assert kind.__module__ == f"{package.__name__}.{each.module}"
    assert kind.strategy_name == each.names[0]
    assert names_of(kind) == each.names
    assert all(getattr(package, name) is kind for name in each.old_kinds)
    assert not each.lightning or each.lightning in {base.__name__ for base in kind.__mro__}


@pytest.mark.parametrize("family", mirror.FAMILIES, ids=lambda family: family.trainer)
def test_the_names_are_registered(family: mirror.Family) -> None:
    trainers = importlib.import_module(f"{family.trainer}.strategies").StrategyRegistry
    fabrics = importlib.import_module(f"{family.fabric}.strategies").STRATEGY_REGISTRY
    for each in STRATEGIES:
        for name in each.names:
            assert trainers[name]["strategy"] is getattr(family.find("strategies"), each.kind)
            assert (name in fabrics) == each.has_fabric_name


def test_a_class_of_a_user_has_no_names_of_ours() -> None:
    ours = mirror.LIGHTNING.find("strategies").HPUDDPStrategy
    assert names_of(type("HPUDDPStrategy", (ours,), {"__module__": "mine"})) == ()


@pytest.mark.parametrize("package", ["", "strategies", "fabric/strategies"])
def test_type_checkers_are_told_the_same(package: str) -> None:
    tree = ast.parse((PACKAGE / package / "__init__.py").read_text())
    told = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
        if alias.name.endswith("Strategy")
    }
    assert told == set(EXPORTS)


def test_no_name_stands_twice() -> None:
    names: list[Any] = [name for each in STRATEGIES for name in each.names]
    # Of two that take the place of one of Lightning's, the second would take that of the first.
    names += [each.lightning for each in STRATEGIES if each.lightning]
    assert len(names) == len(set(names))
