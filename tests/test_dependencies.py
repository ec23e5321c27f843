"""What is imported is what pyproject.toml declares, for the package and for each extra alone."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from recipes.common import entrypoint
from tests.helpers.rooms import is_of_stand_in

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

ROOT = Path(__file__).parents[1]
# The vendor's package is part of a Gaudi's environment.
OURS = {"lightning_gaudi", "_lightning_gaudi_autoload", "recipes", "habana_frameworks"}
# What Lightning imports for a recipe: its command line, and the loggers of the YAML files.
FOR_LIGHTNING = {"jsonargparse", "tensorboard"}
# What transformers imports, which is asked for a model in a .gguf file.
FOR_TRANSFORMERS = {"gguf"}


# Functions that import them run once their user has.
PATCHED = {"transformers"}


class Import(NamedTuple):
    """A third-party package that a file imports."""

    distribution: str
    path: Path
    is_guarded: bool
    """In a function, or for type checkers: importing the module does not need it."""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _names(requirements: Iterable[str]) -> set[str]:
    """Distributions that are required without an extra."""
    plain = (each for each in requirements if "extra ==" not in each)
    return {_normal(re.split(r"[^\w.-]", each, maxsplit=1)[0]) for each in plain}


def _declared(extra: str | None = None) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return _names(project["optional-dependencies"][extra] if extra else project["dependencies"])


def _brought_by(distributions: Iterable[str]) -> set[str]:
    """What they declare themselves."""
    found = [importlib.metadata.requires(each) or () for each in distributions]
    return {name for requirements in found for name in _names(requirements)}


@cache
def _distributions() -> dict[str, str]:
    """By importable name."""
    found = {
        module: _normal(names[0])
        for module, names in importlib.metadata.packages_distributions().items()
    }
    if sys.version_info < (3, 11):  # it knows there those alone that list their modules
        for each in importlib.metadata.distributions():
            for file in each.files or ():
                if file.suffix == ".py" and len(file.parts) <= 2:
                    name = file.parts[0] if len(file.parts) == 2 else file.stem
                    found.setdefault(name, _normal(each.metadata["Name"]))
    return found


def _imports(folder: str) -> Iterator[Import]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        if is_of_stand_in(path):
            continue
        for module, is_guarded in _modules(ast.parse(path.read_text()), is_guarded=False):
            root = module.split(".")[0]
            if root not in sys.stdlib_module_names and root not in OURS:
                yield Import(_distributions().get(root, root), path, is_guarded)


def _modules(node: ast.AST, *, is_guarded: bool) -> Iterator[tuple[str, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, is_guarded) for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and not child.level and child.module:
            yield child.module, is_guarded
        elif isinstance(child, ast.Call) and (name := _imported_by(child)):
            yield name, is_guarded
        is_later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        is_for_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        yield from _modules(child, is_guarded=is_guarded or is_later or is_for_types)


def _imported_by(call: ast.Call) -> str | None:
    """The name in `importlib.import_module("name")`."""
    is_import = ast.unparse(call.func) == "importlib.import_module"
    name = call.args[0].value if is_import and isinstance(call.args[0], ast.Constant) else ""
    return None if not name or name.startswith(".") else name


def _undeclared(imports: Iterable[Import], declared: set[str]) -> list[str]:
    found = {
        f"{each.path.relative_to(ROOT)} imports {each.distribution}"
        for each in imports
        if each.distribution not in declared
    }
    return sorted(found)


@pytest.mark.slow
def test_importing_the_package_needs_its_base_dependencies_alone() -> None:
    imports = [each for each in _imports("lightning_gaudi") if not each.is_guarded]
    assert _undeclared(imports, _declared() | _brought_by(["lightning"])) == []


def test_what_the_package_imports_when_asked_belongs_to_an_extra() -> None:
    extra = _declared("deepspeed") | _declared("diffusion") | _declared("llm")
    available = _declared() | extra | _brought_by(["lightning", *extra]) | PATCHED
    assert _undeclared(_imports("lightning_gaudi"), available) == []


def test_recipes_import_what_their_extra_declares() -> None:
    names = ("recipes", "diffusion", "llm", "deepspeed")
    extras = set().union(*map(_declared, names))
    assert _undeclared(_imports("recipes"), _declared() | extras) == []


@pytest.mark.slow_but("None-lightning_gaudi-others0")
@pytest.mark.parametrize(
    ("extra", "folder", "others"),
    [
        (None, "lightning_gaudi", set()),
        ("deepspeed", "lightning_gaudi", set()),
        ("recipes", "recipes", FOR_LIGHTNING),
        ("diffusion", "recipes", set()),
        ("llm", "recipes", FOR_TRANSFORMERS),
    ],
)
def test_what_is_declared_is_imported(extra: str | None, folder: str, others: set[str]) -> None:
    used = {each.distribution for each in _imports(folder)}
    assert _declared(extra) - used - others == set()


def test_recipes_know_what_their_extra_installs() -> None:
    """By the names that are imported: what of it is absent is said with how to get it."""
    assert {_distributions()[name] for name in entrypoint.EXTRA} == _declared("recipes")
    assert {_distributions()[name] for name in entrypoint.DIFFUSION} == _declared("diffusion")
