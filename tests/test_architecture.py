"""The import rules that keep the house in order."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from lightning_gaudi._core import mirror
from tests.helpers.rooms import PACKAGE, ROOT, imports, is_of_stand_in, room_of, sources_of

LIGHTNING = {"lightning", "pytorch_lightning", "lightning_fabric"}


def _roots(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


PER_OBJECT = "cached_property"
"""Keeps a value in an object, and none of the process."""

ROOMS: dict[str, set[str]] = {
    "_version": set(),
    "hardware": set(),
    "measured_card": set(),
    "published": set(),
    "releases": set(),
    "strategy_table": set(),
    "untrusted": set(),
    "report": set(),
    "_core": {"hardware", "releases", "untrusted"},
    "simulator": {"_version", "hardware", "measured_card", "releases", "untrusted"},
    "config_errors": {"_core", "untrusted"},
    "attention": {"_core"},
    "compilation": {"_core"},
    "inference": {"_core", "hardware", "untrusted"},
    "reliability": {"_core", "untrusted"},
    "_patches": {"_core", "attention", "reliability", "simulator", "strategy_table", "untrusted"},
    "data": {"_core", "_patches", "untrusted"},
    "callbacks": {"_core", "compilation", "reliability"},
    "checkpoint": {"_core", "_version", "reliability", "untrusted"},
    "profiler": {"_core", "compilation", "untrusted"},
    "distributed": {"_core", "compilation", "reliability", "strategy_table", "untrusted"},
    "deepspeed": {"_core", "_patches", "checkpoint", "distributed", "untrusted"},
    "fabric": {
        "_core",
        "_patches",
        "attention",
        "checkpoint",
        "data",
        "deepspeed",
        "distributed",
        "reliability",
        "strategy_table",
    },
    "accelerator": {"_core", "fabric"},
    "precision": {"_core", "fabric"},
    "strategies": {
        "_core",
        "_patches",
        "checkpoint",
        "compilation",
        "data",
        "deepspeed",
        "distributed",
        "precision",
        "reliability",
        "strategy_table",
        "untrusted",
    },
    "tools/plan": {
        "_core",
        "_patches",
        "hardware",
        "measured_card",
        "published",
        "report",
        "simulator",
        "untrusted",
    },
    "tools/doctor": {"_core", "_version", "hardware", "releases", "simulator", "untrusted"},
    "tools/audit": {
        "_core",
        "_patches",
        "data",
        "measured_card",
        "report",
        "simulator",
        "untrusted",
    },
    "tools/verify": {
        "_core",
        "_version",
        "hardware",
        "inference",
        "measured_card",
        "releases",
        "simulator",
        "tools/doctor",
        "untrusted",
    },
    "tools/command_line": {
        "_core",
        "_version",
        "deepspeed",
        "measured_card",
        "simulator",
        "tools/audit",
        "tools/doctor",
        "tools/plan",
        "tools/verify",
        "untrusted",
    },
}
"""Each room, and those that it imports: only ones above it. The package itself has their names.

A patch finds what it needs of the rooms below it by name, when an HPU is asked for.
"""


def _imported_rooms(room: str) -> set[str]:
    path = PACKAGE / room
    sources = sources_of(path) if path.is_dir() else [path.with_suffix(".py")]
    names = {
        room_of(name)
        for source in sources
        if not is_of_stand_in(source)
        for name in imports(source)
        if name.startswith("lightning_gaudi.")
    }
    return names - {room}


def _is_mirrored(room: str) -> bool:
    return mirror.is_mirrored(room.partition("/")[0])


def test_every_room_is_in_the_table_and_every_line_is_a_room() -> None:
    found = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    tools = {f"tools/{path.name}" for path in (PACKAGE / "tools").iterdir() if path.is_dir()}
    rooms = found - {"__init__", "__pycache__", "py", "tools"} | tools - {"tools/__pycache__"}
    assert rooms == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_just_what_the_table_says(room: str) -> None:
    assert _imported_rooms(room) <= ROOMS[room]


def test_imports_go_one_way() -> None:
    above: set[str] = set()
    for room, imported in ROOMS.items():
        assert imported <= above, room
        above.add(room)


def test_few_rooms_know_one_another() -> None:
    """Without those that import nothing, and the room that all stand on."""
    ground = {room for room, imported in ROOMS.items() if not imported} | {"_core"}
    pairs = [(room, other) for room, imported in ROOMS.items() for other in imported - ground]
    assert len(pairs) <= 45, pairs


def test_only_vendor_imports_the_vendors_package() -> None:
    importers = [
        path.relative_to(PACKAGE).as_posix()
        for path in sources_of(PACKAGE)
        if not is_of_stand_in(path) and "habana_frameworks" in _roots(path)
    ]
    assert importers == ["_core/vendor/__init__.py"]


def test_data_touches_no_device() -> None:
    sources = sources_of(PACKAGE / "data")
    assert sources
    for path in sources:
        assert "lightning_gaudi._core.vendor" not in set(imports(path)), path
        assert "hpu" not in path.read_text().split('"'), f"{path} names the device"


@pytest.mark.parametrize("room", ["_core", *mirror.SHARED])
def test_a_room_that_exists_once_knows_nothing_of_lightning(room: str) -> None:
    path = PACKAGE / room
    sources = sources_of(path) if path.is_dir() else [path.with_suffix(".py")]
    assert sources
    for path in sources:
        assert LIGHTNING.isdisjoint(_roots(path)), path


def test_patches_name_lightning_by_its_family() -> None:
    """A patch serves both of Lightning's namespaces, and imports neither."""
    for path in sources_of(PACKAGE / "_patches"):
        assert LIGHTNING.isdisjoint(_roots(path)), path


def test_only_the_start_of_the_package_starts_the_simulator() -> None:
    """Nothing else of the plugin asks whether the card is simulated."""
    starts = {
        path.relative_to(PACKAGE).as_posix()
        for path in sources_of(PACKAGE)
        if PACKAGE / "simulator" not in path.parents
        and any("simulator" in name.split(".") for name in imports(path))
    }
    # Commands may ask, as they change nothing: `doctor` says that a card is simulated, an audit is
    # of a program on one, for a Gaudi tells nobody of its launches, and what is planned is
    # rehearsed on one that is dry.
    assert {name for name in starts if not name.startswith("tools/")} == {
        "__init__.py",  # by its public name
        "_patches/on_import.py",
    }


def test_contract_tests_know_nothing_of_the_simulator() -> None:
    """What they say must hold on a real card."""
    for path in sources_of(ROOT / "tests" / "contract"):
        source = path.read_text()
        assert not [name for name in imports(path) if "simulator" in name.split(".")], path
        for name in ("_hpu_sim", "host_sync", "LIGHTNING_GAUDI_SIMULATE", "run_python"):
            assert name not in source, f"{path} names {name}"


def test_recipes_import_public_names_only() -> None:
    for path in sources_of(ROOT / "recipes"):
        for name in imports(path):
            if name.split(".")[0] == "lightning_gaudi":
                assert not any(part.startswith("_") for part in name.split(".")), (path, name)
                assert "simulator" not in name.split("."), (path, name)


def test_mirrored_modules_name_lightning_only_as_what_is_replaced() -> None:
    for path in _mirrored():
        for name in imports(path):
            if name.split(".")[0] in LIGHTNING:
                assert name.startswith(("lightning.pytorch", "lightning.fabric")), (path, name)


def test_mirrored_modules_import_one_another_relatively() -> None:
    """An absolute import would mix the two families."""
    mirrored = tuple(f"lightning_gaudi.{room}" for room in ROOMS if _is_mirrored(room))
    for path in _mirrored():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                assert not node.module.startswith(mirrored), (path, node.module)
                assert names.isdisjoint(mirrored), (path, names)


def test_shared_rooms_are_imported_absolutely_by_mirrored_ones() -> None:
    """A relative import would look for them in the mirror, which has none."""
    for path in _mirrored():
        package = path.relative_to(ROOT).parts[:-1]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
                rooms = [base[1]] if len(base) > 1 and base[1] else [a.name for a in node.names]
                shared = [room for room in rooms if room in ROOMS and not _is_mirrored(room)]
                assert not shared, (path, shared)


def test_rooms_that_exist_twice_keep_no_state_of_the_process() -> None:
    """There would be two of it where a program uses both of Lightning's namespaces."""
    for path in _mirrored():
        tree = ast.parse(path.read_text())
        changed = {
            name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names
        }
        caches = [
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
            and any(
                "cache" in name
                for name in map(ast.unparse, node.decorator_list)
                if name != PER_OBJECT
            )
        ]
        # A constant has a name in capitals.
        names = [
            ast.unparse(target)
            for node in tree.body
            if isinstance(node, (ast.Assign, ast.AnnAssign))
            and isinstance(node.value, (ast.Dict, ast.List, ast.Set, ast.Call))
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        ]
        variables = [name for name in names if re.fullmatch(r"_?[a-z][a-z_]*", name)]
        assert not changed, path
        assert not caches, path
        assert set(variables) <= {"log"}, path


def _mirrored() -> list[Path]:
    rooms = [PACKAGE / room for room in ROOMS if _is_mirrored(room)]
    found = [path for room in rooms for path in sources_of(room)]
    return [*found, *(room.with_suffix(".py") for room in rooms if not room.is_dir())]
