"""Which rooms of the package there are, and what a file imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "lightning_gaudi"
_SIMULATOR = PACKAGE / "simulator"
STAND_INS = (_SIMULATOR / "stand_in", _SIMULATOR / "stand_in_unused")
"""The folders of the vendor's package that stands in, which has the vendor's names."""


def sources_of(folder: Path) -> list[Path]:
    """Returns the files of Python in a folder and below, sorted."""
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def is_of_stand_in(path: Path) -> bool:
    """Returns whether a file is part of the vendor's package that stands in."""
    return any(folder in path.parents for folder in STAND_INS)


def imports(path: Path) -> Iterator[str]:
    """Yields the absolute names that a file imports; relative ones are resolved."""
    package = list(path.relative_to(ROOT).with_suffix("").parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def room_of(name: str) -> str:
    """Returns the room of an absolute name of ours; each tool is one."""
    first, *rest = name.split(".")[1:]
    return f"{first}/{rest[0]}" if first == "tools" else first
