"""The command line of a recipe: Lightning's, with one line for each mistake."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from recipes.common.comparison import PublishedComparison
from recipes.common.errors import UserError
from recipes.common.parser import RecipeParser
from recipes.common.published import find_run
from recipes.common.training import RecipeModule

_FOUND_BY_LIGHTNING = ("best", "last", "hpc", "registry")
_SWITCHES = {"enable_progress_bar": ProgressBar, "enable_checkpointing": ModelCheckpoint}


class RecipeCLI(LightningCLI):
    """LightningCLI in which what model and data share is said once, to the data.

    Args:
        links: settings of the data that the model has under the same name.
        arguments: of LightningCLI.
    """

    def __init__(self, *arguments: Any, links: Sequence[str] = (), **options: Any) -> None:
        self.links = links
        super().__init__(*arguments, parser_class=RecipeParser, **options)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        for name in self.links:
            parser.link_arguments(f"data.{name}", f"model.{name}")
        parser.add_argument(
            "--environment",
            type=dict[str, str | int | float] | None,
            default=None,
            help="environment variables, set before torch is imported: PT_HPU_LAZY_MODE=1, ...",
        )
        parser.add_argument(
            "--published",
            type=str | None,
            default=None,
            help="the published run that these settings are: `fit` prints its figures beside yours",
        )

    def instantiate_classes(self) -> None:
        """Data first, then model, then Trainer: a wrong setting ends before a card is acquired."""
        try:
            _check_checkpoint(self._get(self.config, "ckpt_path"))
            super().instantiate_classes()
        except (ValueError, MisconfigurationException) as error:
            raise UserError(str(error)) from error

    def instantiate_trainer(self, **settings: Any) -> Trainer:
        """Without the callbacks of the file that `trainer.enable_...=false` is against."""
        config = self._get(self.config_init, "trainer")
        for switch, kind in _SWITCHES.items():
            if config[switch] is False:
                callbacks = config["callbacks"] or []
                config["callbacks"] = [each for each in callbacks if not isinstance(each, kind)]
        if comparison := self._comparison():
            config["callbacks"] = [*(config["callbacks"] or []), comparison]
        return super().instantiate_trainer(**settings)

    def _comparison(self) -> PublishedComparison | None:
        """What sets the figures of the published run, if the settings name one, beside ours."""
        if not (name := self._get(self.config, "published")):
            return None
        folder = Path(inspect.getfile(self.model_class)).parent
        config = self.config.get(str(self.subcommand), self.config).as_dict()
        return PublishedComparison(find_run(folder, name), config)

    def _run_subcommand(self, subcommand: str) -> None:
        """Run it; what Lightning or the strategy finds wrong with the settings is the user's."""
        is_new = self.model.hparams.get("name") is None
        if subcommand != "fit" and is_new and not self._get(self.config, "ckpt_path"):
            rank_zero_warn(
                f"{subcommand} has no --ckpt_path, so it takes random weights, of a model that has "
                "learnt nothing. Name a .ckpt file that `fit` wrote."
            )
        try:
            super()._run_subcommand(subcommand)
        except MisconfigurationException as error:
            raise UserError(str(error)) from error


def run(
    module_class: type[RecipeModule],
    data_class: type[LightningDataModule],
    args: ArgsType = None,
    *,
    links: Sequence[str] = (),
    program: str | None = None,
    **options: Any,
) -> RecipeCLI:
    """Parse the arguments (the command line's by default) and run the subcommand.

    Args:
        module_class: the recipe's model.
        data_class: the recipe's data.
        args: instead of the command line.
        links: see `RecipeCLI`.
        program: what the user typed to come here, for usage and errors.
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
            parser_kwargs={"prog": program},
            **options,
        )


def _check_checkpoint(path: str | None) -> None:
    """Refuse a file that is not there; words such as `last`, and URLs, are Lightning's to read."""
    if path is None or path in _FOUND_BY_LIGHTNING or ":" in path or Path(path).exists():
        return
    raise UserError(
        f"--ckpt_path {path} does not exist. Name a .ckpt file that `fit` wrote (below "
        "trainer.default_root_dir or the first logger's folder), or leave it out."
    )
