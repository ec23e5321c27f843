"""The command line of a recipe: Lightning's, with one line for each mistake."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lightning_gaudi.callbacks import OnExitCheckpoint
from lightning_gaudi.data import TooFewSamplesError
from lightning_gaudi.untrusted import shown_command
from recipes.common.comparison import PublishedComparison
from recipes.common.errors import UserError, line_of
from recipes.common.parser import RecipeParser
from recipes.common.published import find_run
from recipes.common.report import RunReport
from recipes.common.training import RecipeModule

_FOUND_BY_LIGHTNING = ("best", "last", "hpc", "registry")
_SCORES = ("validate", "test", "predict")
_SWITCHES = {"enable_progress_bar": ProgressBar, "enable_checkpointing": ModelCheckpoint}


class RecipeCLI(LightningCLI):
    """LightningCLI in which a setting that model and data share is given once, to the data.

    Args:
        classes: of model and data.
        links: settings of the data that the model has under the same name.
        program: what the user typed in front of the arguments.
        options: of LightningCLI.
    """

    def __init__(
        self, *classes: Any, links: Sequence[str] = (), program: str | None = None, **options: Any
    ) -> None:
        self.links, self.arguments = links, options.get("args")
        self.program = program or Path(sys.argv[0]).name
        super().__init__(*classes, parser_class=RecipeParser, **options)

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

    def _parse_ckpt_path(self) -> None:
        """Refuses a model's name beside a checkpoint of another, whose settings have precedence."""
        name = f"{self.config.get('subcommand')}.model.name"
        asked = self.config.get(name)
        super()._parse_ckpt_path()
        if asked and asked != (found := self.config.get(name)):
            of = f"model.name={found}" if found else "a model from nothing"
            raise UserError(
                f"model.name={asked} and --ckpt_path are both set, but the checkpoint is of {of}. "
                "Leave out one of them."
            )

    def instantiate_classes(self) -> None:
        """Makes data, model and Trainer in this order: errors come before a card is acquired."""
        try:
            _check_checkpoint(self._get(self.config, "ckpt_path"))
            _check_environment(self._get(self.config, "environment"))
            super().instantiate_classes()
        except (ValueError, MisconfigurationException) as error:
            raise UserError(str(error)) from error

    def instantiate_trainer(self, **settings: Any) -> Trainer:
        """Makes the Trainer, with a report, without what `trainer.enable_...=false` forbids."""
        config = self._get(self.config_init, "trainer")
        if config["overfit_batches"]:
            raise UserError(
                f"trainer.overfit_batches={config['overfit_batches']} gives the batches another "
                "order than that of their buckets, which Lightning cannot do. Set "
                "trainer.limit_train_batches and trainer.limit_val_batches instead."
            )
        callbacks = config["callbacks"] or []
        callbacks = list(callbacks) if isinstance(callbacks, list) else [callbacks]
        for switch, kind in _SWITCHES.items():
            if config[switch] is False or config["barebones"]:
                callbacks = [each for each in callbacks if not isinstance(each, kind)]
        if self.subcommand is not None:
            callbacks += [OnExitCheckpoint(self._how_to_resume()), RunReport(self._title())]
        if comparison := self._comparison():
            callbacks.append(comparison)
        config["callbacks"] = callbacks
        return super().instantiate_trainer(**settings)

    def _comparison(self) -> PublishedComparison | None:
        """Returns the comparison with the published run that the settings name; None if none."""
        if not (name := self._get(self.config, "published")):
            return None
        folder = Path(inspect.getfile(self.model_class)).parent
        config = self.config.get(str(self.subcommand), self.config).as_dict()
        return PublishedComparison(find_run(folder, name), config)

    def _run_subcommand(self, subcommand: str) -> None:
        """Runs it, and reports errors of Lightning or the strategy about settings as the user's."""
        if subcommand in _SCORES and not self._get(self.config, "ckpt_path"):
            self._warn_of_untrained(subcommand)
        try:
            self.datamodule.read(subcommand)
            super()._run_subcommand(subcommand)
        except MisconfigurationException as error:
            raise UserError(str(error)) from error
        except UserError as error:
            raise UserError(line_of(error)) from error
        except TooFewSamplesError as error:
            raise UserError(
                f"{error.what} Use more rows, or set a smaller data.batch_size, "
                "trainer.accumulate_grad_batches or trainer.devices."
            ) from error
        except SystemExit as error:
            self._exit_as_told()
            if isinstance(error.__context__, KeyboardInterrupt):  # before the first step
                raise KeyboardInterrupt from None
            raise

    def _warn_of_untrained(self, subcommand: str) -> None:
        if untrained := self.model.untrained():
            rank_zero_warn(
                f"{subcommand} has no --ckpt_path, so it takes {untrained}. Name a .ckpt file that "
                "`fit` wrote."
            )

    def _exit_as_told(self) -> None:
        """Ends with the status of the signal, as a shell expects; Lightning ends with 0 or 1.

        Only the first rank does so. The others end with 0: with another status, the first one would
        take them for failed.
        """
        exiting = [each for each in self.trainer.callbacks if isinstance(each, OnExitCheckpoint)]
        if exiting and (signum := exiting[0].signal) is not None:
            raise SystemExit(128 + signum if self.trainer.is_global_zero else 0) from None

    def _title(self) -> str:
        return f"{type(self.model).__name__} {self.subcommand}"

    def _how_to_resume(self) -> str:
        """Returns the user's command with a checkpoint behind it, since the last one counts."""
        words = sys.argv[1:] if self.arguments is None else self.arguments
        typed = (
            shown_command([*map(str, words)])
            if isinstance(words, list | tuple)
            else self.subcommand
        )
        typed = str(typed).replace("{", "{{").replace("}", "}}")
        return f"{self.program} {typed} --ckpt_path {{path}}"


def run(
    module_class: type[RecipeModule],
    data_class: type[LightningDataModule],
    args: ArgsType = None,
    *,
    links: Sequence[str] = (),
    program: str | None = None,
    **options: Any,
) -> RecipeCLI:
    """Parses the arguments (the command line's by default) and runs the subcommand.

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
        # The recipes sum what validation logs over all processes themselves.
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
            save_config_kwargs={"overwrite": True},  # without a logger, all runs share a folder
            auto_configure_optimizers=False,
            program=program,
            parser_kwargs={"prog": program},
            **options,
        )


def _check_checkpoint(path: str | None) -> None:
    """Refuses a file that does not exist; Lightning reads words such as `last`, and addresses."""
    if path is None or path in _FOUND_BY_LIGHTNING or ":" in path or Path(path).exists():
        return
    raise UserError(
        f"--ckpt_path {path} does not exist. Name a .ckpt file that `fit` wrote (below "
        "trainer.default_root_dir or the first logger's folder), or leave it out."
    )


def _check_environment(wanted: Mapping[str, Any] | None) -> None:
    """Refuses variables that are not set; `entrypoint.main` sets them before torch is imported."""
    for name, value in (wanted or {}).items():
        if name not in os.environ:
            raise UserError(
                f"environment.{name}={value} has not been set: that is done before torch is "
                "imported, for `environment` at the top of a file behind --config that is on this "
                f"machine, by the recipe's program. Start that, or set {name}={value} yourself."
            )
