"""What `vendor.py` uses of the vendor's package, read from its source."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

_PACKAGE = "habana_frameworks.torch"


class Call(NamedTuple):
    """A call of one of the vendor's names, as it is written."""

    name: str
    num_positional: int
    keywords: tuple[str, ...]
    line: int


class Uses(NamedTuple):
    """All names are relative to `habana_frameworks.torch`; "" is that package."""

    modules: set[str]
    """Modules that are imported by their names."""
    names: set[str]
    """Other names: imported from a module, or attributes of what was."""
    calls: list[Call]
    """The calls among them."""


def uses(path: Path) -> Uses:
    """Read a file that reaches the vendor's package through imports and `package()`."""
    reader = _Reader()
    reader.visit(ast.parse(path.read_text()))
    on_the_way = {name.rpartition(".")[0] for name in reader.names}
    on_the_way = {name for name in on_the_way if not name.endswith("()")}
    return Uses(reader.modules, reader.names - on_the_way - reader.modules, reader.calls)


class _Reader(ast.NodeVisitor):
    """Follows imports, `package()`, attributes, `getattr` and simple assignments in a function."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.names: set[str] = set()
        self.calls: list[Call] = []
        self._variables: dict[str, str] = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer = dict(self._variables)
        self.generic_visit(node)
        self._variables = outer

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if _is_vendors(alias.name):
                self.modules.add(_relative(alias.name))
                assert alias.asname is None, f"line {node.lineno}: import without `as`"

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module is None or not _is_vendors(node.module):
            return
        base = _relative(node.module)
        for alias in node.names:
            name = f"{base}.{alias.name}".lstrip(".")
            self.names.add(name)
            self._variables[alias.asname or alias.name] = name

    def visit_Assign(self, node: ast.Assign) -> None:
        self._assign(node.targets, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign([node.target], node.value)
        self.generic_visit(node)

    def _assign(self, targets: list[ast.expr], value: ast.expr) -> None:
        name = self._name(value)
        for target in targets:
            if isinstance(target, ast.Name) and target.id != "_package":
                if name is None:
                    self._variables.pop(target.id, None)
                else:
                    self._variables[target.id] = name

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if name := self._name(node):
            self.names.add(name)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if name := self._name(node.func):
            assert not any(isinstance(arg, ast.Starred) for arg in node.args), node.lineno
            keywords = tuple(keyword.arg or "**" for keyword in node.keywords)
            assert "**" not in keywords, f"line {node.lineno}: spell the arguments out"
            self.calls.append(Call(name, len(node.args), keywords, node.lineno))
        elif name := self._name(node):  # getattr(vendor's, "name")
            self.names.add(name)
        self.generic_visit(node)

    def _name(self, node: ast.expr) -> str | None:
        """The vendor's name that an expression means, or None."""
        if isinstance(node, ast.Name):
            return self._variables.get(node.id)
        if isinstance(node, ast.Attribute):
            return _join(self._name(node.value), node.attr)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "package":
                return ""
            if node.func.id == "getattr" and isinstance(node.args[1], ast.Constant):
                return _join(self._name(node.args[0]), str(node.args[1].value))
        if isinstance(node, ast.Call):
            name = self._name(node.func)
            return name and f"{name}()"
        return None


def _join(base: str | None, attribute: str) -> str | None:
    return None if base is None else f"{base}.{attribute}".lstrip(".")


def _is_vendors(module: str) -> bool:
    return module == _PACKAGE or module.startswith(f"{_PACKAGE}.")


def _relative(module: str) -> str:
    return module.removeprefix(_PACKAGE).lstrip(".")
