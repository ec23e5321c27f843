"""Lists the recipes and what they say of themselves, without importing them.

A recipe is a package below `recipes/` that `python -m` runs. Its first sentence, and those of its
YAML files, are read from the sources, so that there is one place to change them.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_gaudi._core.wording import nearest

PACKAGE = "recipes"
"""The name of the folder of recipes, which is a package of that name."""
CONFIG_OPTIONS = ("--config", "-c")
_SHOWING_OPTIONS = ("-h", "--help", "--print_config")
"""The options of a recipe that show something instead of running it."""
# The folder of the package in which setup.py puts the recipes of a wheel.
_SHIPPED = "_shipped"
PUBLISHED = "published"
"""The folder of a recipe's configurations that are published runs, setting by setting."""
REGISTRY = "published.yaml"
"""The file of a recipe that says what was published of these runs, and where."""


class UsageError(ValueError):
    """The error for what cannot be done as typed; the message says in a line what to type."""


def local_file(text: str) -> Path:
    """Returns the typed path of a file that is to be written on this machine.

    Raises:
        ArgumentTypeError: It is an address, there is no folder for it, or a folder has its name.
    """
    path = Path(text)
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text} is an address. Name a file of this machine, and copy that."
        )
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"{text}: there is no folder {path.parent}. Make it first."
        )
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder. Name a file.")
    return path


@dataclass(frozen=True)
class Configuration:
    """A YAML file of a recipe."""

    name: str
    """What `--config` takes: the file's place in the recipe, without its suffix."""
    summary: str
    """The first sentence of the file."""
    needs: str
    """What the file's comment says that it needs; "" if nothing."""


@dataclass(frozen=True)
class Recipe:
    """A folder of `recipes/`."""

    name: str
    folder: Path
    summary: str
    """The first sentence of the package."""
    configurations: tuple[Configuration, ...]
    """The configurations: those for a simulated card first, then the published runs."""


def find_root() -> Path:
    """Returns the folder of `recipes/`: in the package in a wheel, beside it in a checkout.

    Raises:
        UsageError: There is none.
    """
    package = Path(__file__).resolve().parents[2]
    for folder in (package / _SHIPPED, package.parent):
        if (folder / PACKAGE / "__init__.py").is_file():
            return folder
    raise UsageError(f"{package} has come without its recipes. Install lightning-gaudi anew.")


def read_recipes() -> list[Recipe]:
    """Returns all recipes, by name."""
    return [read_recipe(folder) for folder in _folders().values()]


def find_recipe(name: str) -> Recipe:
    """Returns the recipe of that name.

    Raises:
        UsageError: There is none; it names those that there are.
    """
    folders = _folders()
    if name not in folders:
        raise UsageError(f"There is no recipe {name!r}. {choices(name, folders)}")
    return read_recipe(folders[name])


def read_recipe(folder: Path) -> Recipe:
    """Returns what the recipe in `folder` says of itself."""
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8")))
    paths = [*folder.glob("*.yaml"), *folder.glob(f"{PUBLISHED}/*.yaml")]
    found = [_read_configuration(path, folder) for path in paths if path.name != REGISTRY]
    starts = ("simulated", f"{PUBLISHED}/", "")
    found.sort(key=lambda each: ([not each.name.startswith(start) for start in starts], each.name))
    return Recipe(folder.name, folder, _first_sentence(docstring or ""), tuple(found))


def find_configurations(recipe: Recipe, arguments: Sequence[str]) -> list[str]:
    """Returns `arguments` with a path behind each `--config`; a name is one of the recipe's.

    Raises:
        UsageError: There is no such file and no such configuration; it names those that there are.
    """
    found = list(arguments)
    for index, word in enumerate(arguments):
        option, equals, value = word.partition("=")
        if option in CONFIG_OPTIONS and equals:
            found[index] = f"{option}={_find_configuration(recipe, value)}"
        elif index and arguments[index - 1] in CONFIG_OPTIONS:
            found[index] = _find_configuration(recipe, word)
    return found


def names_configuration(arguments: Iterable[str]) -> bool:
    """Returns whether there is a `--config` among `arguments`."""
    return _has_option(arguments, CONFIG_OPTIONS)


def options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields options and their values, written as `--name=value` or `--name value`."""
    for word, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        if name.startswith("-"):
            yield name, value if equals else following


def is_inline(value: str) -> bool:
    """Returns whether a value of `--config` is settings or a URL, and not a name or a path."""
    return re.search(r"[\n{]|: |://", value) is not None


def only_shows(arguments: Iterable[str]) -> bool:
    """Returns whether `arguments` ask for help or for the settings, and for no run."""
    return _has_option(arguments, _SHOWING_OPTIONS)


def choices(word: str, names: Iterable[str]) -> str:
    """Returns a sentence or two about the names that there are instead of `word`."""
    names = list(names)
    close = nearest(word, names)
    return (f"Did you mean {close}? " if close else "") + f"There are: {', '.join(names)}."


def _has_option(arguments: Iterable[str], options: Iterable[str]) -> bool:
    return any(word.partition("=")[0] in options for word in arguments)


def _folders() -> dict[str, Path]:
    """Returns the folders of recipes by name, without that of what they share."""
    mains = (find_root() / PACKAGE).glob("*/__main__.py")
    return {path.parent.name: path.parent for path in sorted(mains)}


def _find_configuration(recipe: Recipe, value: str) -> str:
    path, names = Path(value), [each.name for each in recipe.configurations]
    # Settings may be given as they are, and a file may be somewhere else than on this machine.
    if path.is_file() or is_inline(value):
        return value
    name = value.removesuffix(".yaml")
    if name in names:
        return str(recipe.folder / f"{name}.yaml")
    raise UsageError(
        f"--config {value} does not exist, and is none of {recipe.name}'s configurations. "
        f"{choices(path.name.removesuffix('.yaml'), names)}"
    )


def _read_configuration(path: Path, folder: Path) -> Configuration:
    paragraphs = _header(path.read_text("utf-8", errors="replace"))
    summary, needs = paragraphs[0], next((p for p in paragraphs if p.startswith("Needs:")), "")
    name = path.relative_to(folder).with_suffix("").as_posix()
    return Configuration(name, _first_sentence(summary), needs.partition(":")[2].strip())


def _header(text: str) -> list[str]:
    """Returns the paragraphs of the comment at the beginning of `text`.

    An empty line or a line `# Word: ...` begins a paragraph.
    """
    lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    comment = "\n".join(line[1:] for line in lines)
    return [" ".join(part.split()) for part in re.split(r"\n(?= \w+:)|\n\s*\n", comment)]


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0]
