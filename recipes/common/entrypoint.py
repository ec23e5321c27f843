"""Runs a recipe's command line, and answers what it can without torch and Lightning.

Their import takes seconds. Help, the names of commands and configurations, and missing packages are
answered before.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from lightning_gaudi.tools.command_line import catalog, environment
from lightning_gaudi.untrusted import shown
from recipes.common.errors import UserError

COMMANDS = {
    "fit": "train; checkpoints, logs and the settings go to trainer.default_root_dir",
    "validate": "measure a checkpoint (--ckpt_path) on the validation data",
    "test": "measure a checkpoint on the test data",
    "predict": "what a checkpoint predicts for the test data",
    "export": "make a folder of a checkpoint that from_pretrained loads",
}
EXTRA = ("datasets", "huggingface_hub", "jsonargparse", "matplotlib", "rouge_score", "sklearn")
EXTRA += ("tensorboard", "tokenizers", "torchmetrics", "transformers", "upath", "yaml")
"""The packages of the extra `recipes`, by the names of their modules."""
DIFFUSION = ("diffusers", "PIL")
"""The packages of the extra `diffusion`, which one recipe needs, too."""
# Lightning imports these, and has an error of its own if they are missing.
_FOR_LIGHTNING = ("jsonargparse", "tensorboard")

Run = Callable[..., Any]
"""A recipe's `run`, which parses the arguments with its classes and runs the command."""
Export = Callable[..., str]
"""Makes a folder of a checkpoint, and returns how to load it. It takes both paths and, for a recipe
that has several kinds of export, the kind."""


class RecipeProgram(NamedTuple):
    """A recipe as a program; its `__main__` makes one."""

    file: str
    """`__file__` of the recipe's `__main__`."""
    package: str
    """`__package__` of the recipe's `__main__`."""
    module: str
    """The name of the LightningModule's class in the recipe's `module`."""
    data: str
    """The name of the LightningDataModule's class in the recipe's `data`."""
    links: tuple[str, ...] = ()
    """The settings of the module that are taken from the data; see `RecipeCLI`."""
    check: Callable[[], None] | None = None
    """Raises if a library that only this recipe needs is too old."""
    export: Export | None = None
    """The recipe's own export, if its model is not one of transformers alone."""
    export_kinds: Mapping[str, str] = {}
    """The kinds of export, by the option that asks for each, with its help."""

    def run(self, args: Any = None, **options: Any) -> Any:
        """Parses the arguments (the command line's by default) and runs the command.

        Returns:
            The `RecipeCLI`.
        """
        if self.check is not None:
            self.check()
        from recipes.common import cli

        module = getattr(import_module(f"{self.package}.module"), self.module)
        data = getattr(import_module(f"{self.package}.data"), self.data)
        return cli.run(module, data, args, links=self.links, **options)

    def main(self, args: Sequence[str] | None = None, program: str = "") -> None:
        """Runs one of the Trainer's commands, or `export`; see the function `main`."""
        main(self.file, self.run, args, program, self.export, self.export_kinds)


def main(
    file: str,
    run: Run,
    args: Sequence[str] | None = None,
    program: str = "",
    export: Export | None = None,
    export_kinds: Mapping[str, str] | None = None,
) -> None:
    """Runs the command line of a recipe.

    Args:
        file: `__file__` of the recipe's `__main__`.
        run: the recipe's own; takes the arguments, and `program`.
        args: instead of the command line.
        program: what the user typed to come here; by default the module.
        export: of the recipe, where the model is none of transformers alone.
        export_kinds: what it can make, each by its option.

    Raises:
        SystemExit: with 2 for what the user has to change, said in a line, and 130 for Ctrl-C.
    """
    recipe = catalog.read_recipe(Path(file).resolve().parent)
    program = program or f"python -m {catalog.PACKAGE}.{recipe.name}"
    arguments = sys.argv[1:] if args is None else list(args)
    if arguments[:1] in (["-h"], ["--help"]):
        print(_help(recipe, program))
        return
    try:
        _check(recipe, arguments)
        arguments = catalog.find_configurations(recipe, arguments)
        arguments = environment.set_environment(arguments)
        if arguments[0] == "export":
            _export(program, export, export_kinds or {}, arguments[1:])
        else:
            _run(program, run, arguments)
    except (UserError, catalog.UsageError) as error:
        _exit(program, str(error))
    except ModuleNotFoundError as error:
        name = str(error.name).partition(".")[0]
        if name not in (*EXTRA, *DIFFUSION) or importlib.util.find_spec(name):
            raise
        _exit(program, _explain_missing(name))
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None


def _run(program: str, run: Run, arguments: list[str]) -> None:
    for name in _FOR_LIGHTNING:
        if not importlib.util.find_spec(name):
            raise UserError(_explain_missing(name))
    run(arguments, program=program)


def _export(
    program: str, export: Export | None, kinds: Mapping[str, str], arguments: Sequence[str]
) -> None:
    """Writes a folder from a checkpoint, without a Trainer or a card."""
    from recipes.common.folders import folder_to_fill, place_of  # imports Lightning

    parser = argparse.ArgumentParser(
        prog=f"{program} export", description="Write a folder that `from_pretrained` loads."
    )
    parser.add_argument(
        "--checkpoint", type=place_of, required=True, help="a .ckpt file of a fit, or its address"
    )
    parser.add_argument(
        "--output", type=place_of, required=True, help="the folder to write, or its address"
    )
    asked = parser.add_mutually_exclusive_group()
    for name, what in kinds.items():
        asked.add_argument(f"--{name}", dest="kind", action="store_const", const=name, help=what)
    options = parser.parse_args(arguments)
    if export is None:
        from recipes.common.export import export
    with folder_to_fill(options.output) as folder:
        how = export(options.checkpoint, folder, *([options.kind] if kinds else []))
    if folder != options.output:
        how = f"copy it to a disk, then {how.replace(str(folder), options.output.name)}"
    print(f"Exported to {options.output}: {shown(how)}")


def _check(recipe: catalog.Recipe, arguments: Sequence[str]) -> None:
    """Refuses what is not a command, and a run with settings that nobody has chosen.

    LightningCLI reads options before the command. The classes' defaults are small and set no end of
    the run. Whoever wants them, and sets the rest, asks for them with `--config={}`.
    """
    if not arguments:
        raise UserError(f"No command. There are: {', '.join(COMMANDS)}.")
    word = arguments[0]
    if not word.startswith("-") and word not in COMMANDS:
        raise UserError(f"There is no command {word!r}. {catalog.choices(word, COMMANDS)}")
    runs = word != "export" and not catalog.only_shows(arguments)
    if runs and not catalog.names_configuration(arguments):
        names = ", ".join(each.name for each in recipe.configurations)
        raise UserError(
            "No configuration. Add --config with a name or the path of a YAML file. "
            f"There are: {names}."
        )


def _explain_missing(name: str) -> str:
    if name in DIFFUSION:
        return (
            f"This recipe needs the package {name}, which is not installed. Run: "
            "pip install 'lightning-gaudi[recipes,diffusion]'"
        )
    return (
        f"The recipes need the package {name}, which is not installed. Run: "
        "pip install 'lightning-gaudi[recipes]'"
    )


def _exit(program: str, message: str) -> NoReturn:
    print(f"{program}: error: {shown(message)}", file=sys.stderr)
    raise SystemExit(2)


def _help(recipe: catalog.Recipe, program: str) -> str:
    configurations = {each.name: each.summary for each in recipe.configurations}
    width = max(map(len, (*COMMANDS, *configurations)))
    commands, names = (
        "\n".join(f"  {name:<{width}}  {text}" for name, text in table.items())
        for table in (COMMANDS, configurations)
    )
    return f"""\
usage: {program} COMMAND --config NAME [--SECTION.KEY=VALUE ...]

{recipe.summary}

commands:
{commands}

configurations, for --config; or the path of a YAML file:
{names}

Every setting: {program} fit --help
What the recipe does, and how: {recipe.folder / "README.md"}"""
