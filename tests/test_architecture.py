"""The import rules that keep the house in order."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_gaudi._core import mirror

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lightning_gaudi"
STAND_IN = PACKAGE / "simulator" / "stand_in"
LIGHTNING = {"lightning", "pytorch_lightning", "lightning_fabric"}


def _sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def _imports(path: Path) -> Iterator[str]:
    """The absolute names that a file imports; relative ones are resolved."""
    package = list(path.relative_to(ROOT).with_suffix("").parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _roots(path: Path) -> set[str]:
    return {name.split(".")[0] for name in _imports(path)}


def test_only_vendor_imports_the_vendors_package() -> None:
    importers = [
        path.relative_to(PACKAGE).as_posix()
        for path in _sources(PACKAGE)
        if STAND_IN not in path.parents and "habana_frameworks" in _roots(path)
    ]
    assert importers == ["_core/vendor.py"]


@pytest.mark.parametrize("room", ["data", "planning"])
def test_pure_rooms_touch_neither_lightning_nor_a_device(room: str) -> None:
    for path in _sources(PACKAGE / room):
        names = set(_imports(path))
        assert LIGHTNING.isdisjoint(_roots(path)), path
        assert not {name for name in names if name.startswith("lightning_gaudi._core.vendor")}, path
        assert "hpu" not in path.read_text().split('"'), f"{path} names the device"


def test_vendor_and_simulator_never_import_lightning() -> None:
    for path in [PACKAGE / "_core" / "vendor.py", *_sources(PACKAGE / "simulator")]:
        assert LIGHTNING.isdisjoint(_roots(path)), path


def test_only_activation_starts_the_simulator() -> None:
    """Nothing else of the plugin asks whether the card is simulated."""
    rooms = [PACKAGE / "simulator", PACKAGE / "cli", PACKAGE / "activation.py"]
    for path in _sources(PACKAGE):
        if not any(path == room or room in path.parents for room in rooms):
            names = [name for name in _imports(path) if "simulator" in name.split(".")]
            assert not names, f"{path} imports {names}"


def test_contract_tests_know_nothing_of_the_simulator() -> None:
    """What they say must hold on a real card."""
    for path in _sources(ROOT / "tests" / "contract"):
        source = path.read_text()
        assert not [name for name in _imports(path) if "simulator" in name.split(".")], path
        for name in ("_hpu_sim", "host_sync", "LIGHTNING_GAUDI_SIMULATE", "run_python"):
            assert name not in source, f"{path} names {name}"


def test_recipes_import_public_names_only() -> None:
    for path in _sources(ROOT / "recipes"):
        for name in _imports(path):
            if name.split(".")[0] == "lightning_gaudi":
                assert not any(part.startswith("_") for part in name.split(".")), (path, name)
                assert "simulator" not in name.split("."), (path, name)


def test_mirrored_modules_name_lightning_only_as_what_is_replaced() -> None:
    for module in mirror.MIRRORED:
        room = PACKAGE / module
        for path in _sources(room) if room.is_dir() else [room.with_suffix(".py")]:
            for name in _imports(path):
                if name.split(".")[0] in LIGHTNING:
                    assert name.startswith(("lightning.pytorch", "lightning.fabric")), (path, name)


def test_mirrored_modules_import_one_another_relatively() -> None:
    """An absolute import would mix the two families."""
    mirrored = tuple(f"lightning_gaudi.{module}" for module in mirror.MIRRORED)
    for module in mirror.MIRRORED:
        room = PACKAGE / module
        for path in _sources(room) if room.is_dir() else [room.with_suffix(".py")]:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                    names = {f"{node.module}.{alias.name}" for alias in node.names}
                    assert not node.module.startswith(mirrored), (path, node.module)
                    assert names.isdisjoint(mirrored), (path, names)
