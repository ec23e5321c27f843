"""`python -m recipes.bert_pretraining fit|validate|test|predict|export`: see README.md."""

from __future__ import annotations

from collections.abc import Sequence

from lightning.pytorch.cli import ArgsType

from recipes.bert_pretraining.data import BertData
from recipes.bert_pretraining.module import BertPretraining
from recipes.common import cli

LINKS = ("vocab_size", "max_seq_length", "next_sentence")


def run(args: ArgsType = None) -> cli.RecipeCLI:
    """Run a subcommand of the Trainer's; `args` instead of the command line's."""
    return cli.run(BertPretraining, BertData, args, links=LINKS)


def main(args: Sequence[str] | None = None) -> None:
    """Run a subcommand of the Trainer's, or `export`."""
    cli.main("python -m recipes.bert_pretraining", run, args)


if __name__ == "__main__":
    main()
