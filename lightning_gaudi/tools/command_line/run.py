"""Adds `lightning-gaudi run`, which runs a recipe where it is installed."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import reprlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _lightning_gaudi_autoload import SimulatorDidNotStartError
from lightning_gaudi.simulator import activation
from lightning_gaudi.simulator.settings import MAX_CARDS, SIMULATE, SimulatorError, is_requested
from lightning_gaudi.tools.command_line import catalog

if TYPE_CHECKING:
    _Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

PROGRAM = "lightning-gaudi run"
_DESCRIPTION = """\
Run a recipe where it is installed: its commands are fit, validate, test, predict and
export. `--config NAME` takes one of its configurations, or the path of a YAML file."""
_EPILOG = f"""\
examples:
  {PROGRAM} mrpc --help                      its commands and configurations
  {PROGRAM} mrpc fit --config simulated      train on a simulated card
  {PROGRAM} mrpc fit --config published/gaudi_8x
                                                         a published run, on eight cards

A configuration whose name begins with `simulated` starts the simulated HPU by itself, where
the vendor's software is not installed."""


def add_parser(subparsers: _Subparsers) -> None:
    """Adds the `run` command to the help; with a recipe, `run` reads the arguments itself."""
    parser = subparsers.add_parser(
        "run",
        help="run a recipe",
        usage=f"{PROGRAM} RECIPE COMMAND [--config NAME] [--SECTION.KEY=VALUE ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", metavar="RECIPE", help="see `lightning-gaudi recipes`")
    parser.set_defaults(run=lambda options, _: run(options.recipe, []), error=parser.error)


def run(name: str, arguments: Sequence[str]) -> int:
    """Runs a recipe in this process.

    Args:
        name: The name of the recipe.
        arguments: What follows the name on the command line.

    Returns:
        The exit status; the recipe may exit by itself, too.

    Raises:
        UsageError: There is no such recipe or configuration, or no simulator for it.
    """
    recipe = catalog.find_recipe(name)
    arguments = catalog.find_configurations(recipe, arguments)
    _mention_copy(recipe)
    if num_cards := _num_simulated_cards(arguments):
        os.environ[SIMULATE] = str(num_cards)
    # The package keeps the name `recipes`, which modules, pickles and YAML files say. In front,
    # so that a `recipes` of the user's is not imported in its place.
    sys.path.insert(0, str(catalog.find_root()))
    main = importlib.import_module(f"{catalog.PACKAGE}.{name}.__main__").main
    try:
        main(arguments, program=f"{PROGRAM} {name}")
    except (SimulatorError, SimulatorDidNotStartError) as error:
        raise catalog.UsageError(str(error)) from error
    return 0


def _mention_copy(recipe: catalog.Recipe) -> None:
    """Says that a copy of the recipe in the current folder is not what runs."""
    copied = Path(catalog.PACKAGE, recipe.name)
    # Lightning starts the other ranks with the same command line.
    is_first = os.environ.get("LOCAL_RANK", "0") == "0"
    if is_first and copied.is_dir() and copied.resolve() != recipe.folder:
        print(
            f"lightning-gaudi: runs {recipe.name} as it is installed. For yours in {copied}: "
            f"python -m {catalog.PACKAGE}.{recipe.name}",
            file=sys.stderr,
        )


def _num_simulated_cards(arguments: Sequence[str]) -> int:
    """Returns how many cards to simulate: those of a configuration named `simulated...`, or 0.

    It is 0, too, where the environment asks for the simulator itself, where the vendor's package is
    installed, or where the settings choose another accelerator.
    """
    files = [
        Path(value) for name, value in catalog.options(arguments) if name in catalog.CONFIG_OPTIONS
    ]
    is_asked = any(file.name.startswith("simulated") for file in files)
    if not is_asked or catalog.only_shows(arguments) or is_requested():
        return 0
    try:
        activation.refuse_vendor(PROGRAM)
    except SimulatorError:
        return 0
    trainer = _trainer_settings(arguments)
    if trainer.get("accelerator") not in ("hpu", "auto", None):
        return 0
    return min(max(_num_cards(trainer.get("devices")), 1), MAX_CARDS)


def _trainer_settings(arguments: Sequence[str]) -> dict[str, Any]:
    """Returns the settings of the Trainer, the last word for each; unreadable ones are left out."""
    import yaml  # type: ignore[import-untyped]

    settings: dict[str, Any] = {}
    for name, value in catalog.options(arguments):
        with contextlib.suppress(OSError, yaml.YAMLError, ValueError, RecursionError):
            if name in catalog.CONFIG_OPTIONS:
                found = yaml.safe_load(Path(value).read_text("utf-8"))
                trainer = found.get("trainer") if isinstance(found, dict) else None
                settings |= trainer if isinstance(trainer, dict) else {}
            elif name.startswith("--trainer."):
                settings[name.removeprefix("--trainer.")] = yaml.safe_load(value)
    return settings


def _num_cards(devices: Any) -> int:
    """Returns how many cards a value of `trainer.devices` needs at least."""
    text = reprlib.repr(devices) if isinstance(devices, list | dict) else str(devices)
    numbers = [int(number) for number in re.findall(r"-?[0-9]{1,9}", text[:200])]
    # A list names cards from 0 on, so its largest number needs one card more.
    is_list = isinstance(devices, list) or "," in str(devices)
    return max(numbers, default=0) + is_list
