"""`python -m recipes.t5_summarization fit|validate|test|predict|export`: see README.md."""

from __future__ import annotations

from collections.abc import Sequence

from lightning.pytorch.cli import ArgsType

from recipes.common import cli
from recipes.t5_summarization.data import SummarizationData
from recipes.t5_summarization.module import T5Summarization


def run(args: ArgsType = None, **options: object) -> cli.RecipeCLI:
    """Parse the arguments (the command line's by default) and run the subcommand."""
    shared = ("vocab_size", "tokenizer", "max_target_length")
    return cli.run(T5Summarization, SummarizationData, args, links=shared, **options)


def main(args: Sequence[str] | None = None) -> None:
    """Run the Trainer's subcommands, or `export`."""
    cli.main("python -m recipes.t5_summarization", run, args)


if __name__ == "__main__":
    main()
