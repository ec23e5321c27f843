"""Adds `lightning-gaudi recipes`, which lists the recipes and their configurations."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lightning_gaudi.tools.command_line import catalog

if TYPE_CHECKING:
    _Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_ONE_LINE = 10_000
_EPILOG = """\
To run one, to see its settings, and to get its sources to change:
  lightning-gaudi run RECIPE fit --config CONFIGURATION
  lightning-gaudi run RECIPE --help
  lightning-gaudi copy RECIPE
All of them need the extra `recipes`: pip install 'lightning-gaudi[recipes]'"""


def add_parser(subparsers: _Subparsers) -> None:
    """Adds the `recipes` command."""
    parser = subparsers.add_parser(
        "recipes",
        help="list the recipes: complete training runs, and their configurations",
        description="List the recipes, their configurations, and what these need.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run, error=parser.error)


def _run(options: argparse.Namespace, command: Sequence[str]) -> int:
    if command:
        options.error(f"unrecognized arguments after --: {' '.join(command)}")
    for recipe in catalog.read_recipes():
        print("\n".join(_lines(recipe)))
    print(_EPILOG)
    return 0


def _lines(recipe: catalog.Recipe) -> Iterator[str]:
    """Yields the lines of a recipe and its configurations."""
    # Only for a terminal are lines broken: a program that reads them gets one a configuration.
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else _ONE_LINE
    yield f"{recipe.name}: {recipe.summary}"
    for each in recipe.configurations:
        for text, indent in ((f"{each.name}: {each.summary}", 2), (f"needs {each.needs}", 6)):
            later = " " * (indent + 4)
            yield textwrap.fill(text, columns, initial_indent=" " * indent, subsequent_indent=later)
    yield ""
