"""The command line of a recipe: Lightning's, and `export`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from recipes.common import export
from recipes.common.training import RecipeModule

_FOUND_BY_LIGHTNING = ("best", "last", "hpc", "registry")


class RecipeCLI(LightningCLI):
    """LightningCLI in which what model and data share is said once, to the data.

    Args:
        links: settings of the data that the model has under the same name.
        arguments: of LightningCLI.
    """

    def __init__(self, *arguments: Any, links: Sequence[str] = (), **options: Any) -> None:
        self.links = links
        super().__init__(*arguments, **options)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        for name in self.links:
            parser.link_arguments(f"data.{name}", f"model.{name}")

    def instantiate_classes(self) -> None:
        """Data first, then model, then Trainer: a wrong setting ends before a card is acquired."""
        try:
            _check_checkpoint(self._get(self.config, "ckpt_path"))
            super().instantiate_classes()
        except ValueError as error:
            self.parser.error(str(error), error)


def run(
    module_class: type[RecipeModule],
    data_class: type[LightningDataModule],
    args: ArgsType = None,
    *,
    links: Sequence[str] = (),
    **options: Any,
) -> RecipeCLI:
    """Parse the arguments (the command line's by default) and run the subcommand.

    Args:
        module_class: the recipe's model.
        data_class: the recipe's data.
        args: instead of the command line.
        links: see `RecipeCLI`.
        options: of LightningCLI, `run=False` for example.
    """
    with warnings.catch_warnings():
        # Lightning suspects arguments of a program that has a command line of its own.
        warnings.filterwarnings("ignore", "LightningCLI's args parameter", UserWarning)
        # What validation logs is summed over all processes before.
        warnings.filterwarnings("ignore", ".*sync_dist=True", UserWarning)
        # For prediction too, the loaders of the recipes give each sample once, on any number of
        # ranks.
        warnings.filterwarnings("ignore", "You are using a custom batch sampler", UserWarning)
        return RecipeCLI(
            module_class,
            data_class,
            args=args,
            links=links,
            seed_everything_default=0,
            save_config_kwargs={"overwrite": True},  # without a logger every run has one folder
            auto_configure_optimizers=False,
            **options,
        )


def _check_checkpoint(path: str | None) -> None:
    """Refuse a file that is not there; words such as `last`, and URLs, are Lightning's to read."""
    if path is None or path in _FOUND_BY_LIGHTNING or ":" in path or Path(path).exists():
        return
    raise ValueError(
        f"--ckpt_path {path} does not exist. Name a .ckpt file that `fit` wrote (below "
        "trainer.default_root_dir or the first logger's folder), or leave it out."
    )


def main(program: str, run: Callable[[ArgsType], Any], args: Sequence[str] | None = None) -> None:
    """Run the Trainer's subcommands, or `export`, which needs neither Trainer nor card.

    Args:
        program: how the recipe is called, for messages: `python -m recipes.mrpc`.
        run: the recipe's own, with its classes.
        args: instead of the command line.
    """
    arguments = sys.argv[1:] if args is None else list(args)
    if arguments[:1] == ["export"]:
        export.main(program, arguments[1:])
    else:
        run(args and arguments)
