"""Adds `lightning-gaudi copy`, which copies the sources of a recipe for the user to change."""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_gaudi.tools.command_line import catalog

if TYPE_CHECKING:
    _Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_SHARED = "common"
_DESCRIPTION = """\
Copy a recipe, sources and configurations, to FOLDER/recipes/RECIPE, and what the recipes
share to FOLDER/recipes/common. In FOLDER, `python -m recipes.RECIPE` then runs your copy.
Nothing that is there is overwritten."""


def add_parser(subparsers: _Subparsers) -> None:
    """Adds the `copy` command."""
    parser = subparsers.add_parser(
        "copy",
        help="copy the sources of a recipe, to change them",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", metavar="RECIPE", help="see `lightning-gaudi recipes`")
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="where to, made if it is not there (default: the current folder)",
    )
    parser.set_defaults(run=_run, error=parser.error)


def _run(options: argparse.Namespace, command: Sequence[str]) -> int:
    if command:
        options.error(f"unrecognized arguments after --: {' '.join(command)}")
    recipe, folder = catalog.find_recipe(options.recipe), options.folder
    if folder.exists() and not folder.is_dir():
        raise catalog.UsageError(f"{folder} is a file. Name a folder to copy to.")
    try:
        differing = copy(recipe, folder)
    except OSError as error:
        reason = error.strerror or error
        raise catalog.UsageError(f"Nothing was copied to {folder}: {reason}.") from error
    target = folder / catalog.PACKAGE
    print(f"Copied to {target / recipe.name}.")
    if differing:
        print(
            f"{target / _SHARED} was there and is left as it is; what is installed differs in "
            f"{', '.join(differing)}."
        )
    enter = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    print(f"Read its README.md; try: {enter}python -m {catalog.PACKAGE}.{recipe.name} --help")
    return 0


def copy(recipe: catalog.Recipe, folder: Path) -> list[str]:
    """Copies a recipe and what it shares with others, all of it or nothing.

    Args:
        recipe: The recipe.
        folder: The folder for `recipes/`. Both are made if they are not there.

    Returns:
        The files of our `recipes/common` that differ in one that was there, or are missing in it.

    Raises:
        UsageError: The recipe is there already.
        OSError: It cannot be written; nothing is left of it.
    """
    source, target = recipe.folder.parent, folder / catalog.PACKAGE
    if (target / recipe.name).exists():
        raise catalog.UsageError(
            f"{target / recipe.name} is there already, and nothing was copied. Name another "
            f"folder (lightning-gaudi copy {recipe.name} FOLDER), or move that one away."
        )
    parts = ["__init__.py", _SHARED, recipe.name]
    missing = [part for part in parts if not (target / part).exists()]
    differing = [] if _SHARED in missing else _differing(source / _SHARED, target / _SHARED)
    with _folder(folder), tempfile.TemporaryDirectory(prefix=".recipes-", dir=folder) as private:
        whole = Path(private) / catalog.PACKAGE
        for part in missing:
            _copy(source / part, whole / part)
        with _undo() as placed:
            # Where `recipes/` is new, one rename moves all of it, which happens or does not.
            names = missing if target.exists() else [""]
            for name in names:
                (whole / name).rename(target / name)
                placed.append(target / name)
    return differing


def _copy(source: Path, target: Path) -> None:
    """Copies files without their permissions, because installed ones may be read-only."""
    if source.is_dir():
        for path in source.iterdir():
            if path.name != "__pycache__":
                _copy(path, target / path.name)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


@contextlib.contextmanager
def _folder(folder: Path) -> Iterator[None]:
    """Makes a folder, and removes what was made of it if the block fails."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        # A folder may not have been made yet, or somebody has put something into it meanwhile.
        with contextlib.suppress(OSError):
            for path in made:
                path.rmdir()
        raise


@contextlib.contextmanager
def _undo() -> Iterator[list[Path]]:
    """Removes the paths that the block has put into the list, if it fails."""
    placed: list[Path] = []
    try:
        yield placed
    except BaseException:
        for path in placed:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise


def _differing(ours: Path, theirs: Path) -> list[str]:
    found = filecmp.dircmp(ours, theirs, ignore=["__pycache__"])
    return sorted([*found.left_only, *found.diff_files])
