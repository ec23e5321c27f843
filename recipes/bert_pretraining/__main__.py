"""`python -m recipes.bert_pretraining fit|validate|test|export`: see README.md."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from recipes.bert_pretraining import export
from recipes.bert_pretraining.data import BertData
from recipes.bert_pretraining.module import BertPretraining


class BertCLI(LightningCLI):
    """LightningCLI in which what model and data share is said once, to the data."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """What this recipe can do; there is nothing to predict with a pretrained encoder."""
        return {
            name: skip for name, skip in LightningCLI.subcommands().items() if name != "predict"
        }

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        for name in ("vocab_size", "max_seq_length", "next_sentence"):
            parser.link_arguments(f"data.{name}", f"model.{name}")

    def instantiate_classes(self) -> None:
        """Data first, then model, then Trainer: a wrong setting ends before a card is acquired."""
        try:
            super().instantiate_classes()
        except ValueError as error:
            self.parser.error(str(error), error)


def run(args: ArgsType = None) -> BertCLI:
    """Parse the arguments (the command line's by default) and run the subcommand."""
    with warnings.catch_warnings():
        # Lightning suspects arguments of a program that has a command line of its own.
        warnings.filterwarnings("ignore", "LightningCLI's args parameter", UserWarning)
        # What validation logs is summed over all processes before.
        warnings.filterwarnings("ignore", ".*sync_dist=True", UserWarning)
        return BertCLI(
            BertPretraining,
            BertData,
            seed_everything_default=0,
            save_config_kwargs={"overwrite": True},  # without a logger every run has one folder
            args=args,
            auto_configure_optimizers=False,
        )


def main(args: Sequence[str] | None = None) -> None:
    """Run the Trainer's subcommands, or `export`, which needs neither Trainer nor card."""
    arguments = sys.argv[1:] if args is None else list(args)
    if arguments[:1] == ["export"]:
        export.main(arguments[1:])
    else:
        run(args and arguments)


if __name__ == "__main__":
    main()
