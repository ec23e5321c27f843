"""The table of strategies is what the classes, the registries and the packages say."""

from __future__ import annotations

import ast
import importlib
from typing import Any

import pytest

from lightning_gaudi import strategy_table
from lightning_gaudi._core import mirror
from lightning_gaudi.strategy_table import STRATEGIES, Strategy, exports, names_of
from tests.helpers.rooms import PACKAGE

ROLES = ("strategies", "fabric.strategies")


@pytest.mark.parametrize("each", STRATEGIES, ids=lambda each: each.kind)
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("family", mirror.FAMILIES, ids=lambda family: family.trainer)
def test_a_line_is_a_class(family: mirror.Family, role: str, each: Strategy) -> None:
    package = family.find(role)
    if role.startswith("fabric") and not each.is_in_fabric:
        assert not hasattr(package, each.kind)
        return
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
            assert (name in fabrics) == (name in each.fabric_names)


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
    assert told == set(exports(in_fabric=package.startswith("fabric")))


def test_fabric_is_not_said_to_have_a_strategy_of_the_trainer_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = Strategy("HPUAloneStrategy", "alone", "", ("hpu_alone",), is_in_fabric=False)
    monkeypatch.setattr(strategy_table, "STRATEGIES", (*STRATEGIES, alone))
    assert exports(in_fabric=False)[alone.kind] == ".alone"
    assert alone.kind not in exports(in_fabric=True)
    assert "'hpu_alone'" in strategy_table.listed_names(in_fabric=False)
    assert "'hpu_alone'" not in strategy_table.listed_names(in_fabric=True)


def test_no_name_stands_twice() -> None:
    names: list[Any] = [name for each in STRATEGIES for name in each.names]
    # Of two that take the place of one of Lightning's, the second would take that of the first.
    names += [each.lightning for each in STRATEGIES if each.lightning]
    assert len(names) == len(set(names))
