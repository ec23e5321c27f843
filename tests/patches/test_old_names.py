"""The names that Lightning had for HPU classes, in its packages and its old modules."""

from __future__ import annotations

import importlib
import pickle
import re
from types import ModuleType

import pytest

from lightning_gaudi._core import mirror
from tests.helpers.migrating import section

PLACES = {
    "HPUAccelerator": ["accelerators", "accelerators.hpu"],
    "SingleHPUStrategy": ["strategies", "strategies.single_hpu"],
    "HPUParallelStrategy": ["strategies", "strategies.hpu_parallel"],
    "HPUPrecisionPlugin": ["plugins", "plugins.precision", "plugins.precision.hpu"],
    "HPUCheckpointIO": ["plugins", "plugins.io", "plugins.io.hpu_plugin"],
}
each_place = pytest.mark.parametrize(
    ("place", "name"), [(place, name) for name, places in PLACES.items() for place in places]
)
each_family = pytest.mark.parametrize("family", mirror.FAMILIES, ids=lambda family: family.trainer)


def _module(family: mirror.Family, place: str) -> ModuleType:
    return importlib.import_module(f"{family.trainer}.{place}")


@each_family
@each_place
def test_old_names_are_our_classes(family: mirror.Family, place: str, name: str) -> None:
    module, ours = _module(family, place), getattr(importlib.import_module(family.ours), name)
    namespace: dict[str, object] = {}
    exec(f"from {module.__name__} import {name}", namespace)
    assert namespace[name] is getattr(module, name) is ours
    assert hasattr(module, name)
    assert ours.__module__.startswith(f"{family.ours}.")


@each_family
@each_place
def test_what_was_pickled_by_an_old_name_is_found(
    family: mirror.Family, place: str, name: str
) -> None:
    ours = getattr(importlib.import_module(family.ours), name)
    assert pickle.loads(f"c{family.trainer}.{place}\n{name}\n.".encode()) is ours
    assert pickle.loads(pickle.dumps(ours)) is ours


@pytest.mark.xfail(reason="a module whose names are found when they are asked for lists none")
def test_old_names_are_listed() -> None:
    for name, places in PLACES.items():
        assert all(name in dir(_module(mirror.LIGHTNING, place)) for place in places)


@each_family
def test_other_names_are_not_there(family: mirror.Family) -> None:
    for place in {place for places in PLACES.values() for place in places}:
        module = _module(family, place)
        assert not hasattr(module, "HPUNonsense")
        with pytest.raises(AttributeError, match="has no attribute 'HPUNonsense'"):
            _ = module.HPUNonsense
        with pytest.raises(ImportError, match="cannot import name 'HPUNonsense'"):
            exec(f"from {module.__name__} import HPUNonsense", {})


@each_family
def test_the_imports_of_the_document_give_our_classes(family: mirror.Family) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", section("From Lightning's own HPU classes"), re.S)
    namespace: dict[str, object] = {}
    exec(block.replace("lightning.pytorch.", f"{family.trainer}."), namespace)
    ours = importlib.import_module(family.ours)  # which imports a class as it is asked for it
    assert {name: namespace[name] for name in PLACES} == {
        name: getattr(ours, name) for name in PLACES
    }
