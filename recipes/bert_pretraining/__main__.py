"""`python -m recipes.bert_pretraining fit|validate|test|predict|export`: see README.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from recipes.common import entrypoint

if TYPE_CHECKING:
    from lightning.pytorch.cli import ArgsType

    from recipes.common.cli import RecipeCLI

LINKS = ("vocab_size", "max_seq_length", "next_sentence")


def run(args: ArgsType = None, **options: Any) -> RecipeCLI:
    """Parses the arguments (the command line's by default) and runs the command."""
    from recipes.bert_pretraining.data import BertData
    from recipes.bert_pretraining.module import BertPretraining
    from recipes.common import cli

    return cli.run(BertPretraining, BertData, args, links=LINKS, **options)


def main(args: Sequence[str] | None = None, program: str = "") -> None:
    """Runs one of the Trainer's commands, or `export`; see `front.main`."""
    entrypoint.main(__file__, run, args, program)


if __name__ == "__main__":
    main()
