"""`python -m recipes.bert_pretraining fit|validate|test|predict|export`: see README.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning.pytorch.cli import ArgsType

from recipes.bert_pretraining.data import BertData
from recipes.bert_pretraining.module import BertPretraining
from recipes.common import cli

LINKS = ("vocab_size", "max_seq_length", "next_sentence")


def run(args: ArgsType = None, **options: Any) -> cli.RecipeCLI:
    """Parse the arguments (the command line's by default) and run the subcommand."""
    return cli.run(BertPretraining, BertData, args, links=LINKS, **options)


def main(args: Sequence[str] | None = None) -> None:
    """Run a subcommand of the Trainer's, or `export`."""
    cli.main("python -m recipes.bert_pretraining", run, args)


if __name__ == "__main__":
    main()
