"""`python -m recipes.mrpc fit|validate|test|predict|export`: see README.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning.pytorch.cli import ArgsType

from recipes.common import cli
from recipes.mrpc.data import MrpcData
from recipes.mrpc.module import Mrpc


def run(args: ArgsType = None, **options: Any) -> cli.RecipeCLI:
    """Parse the arguments (the command line's by default) and run the subcommand."""
    return cli.run(Mrpc, MrpcData, args, links=("vocab_size", "max_length"), **options)


def main(args: Sequence[str] | None = None) -> None:
    """Run the Trainer's subcommands, or `export`."""
    cli.main("python -m recipes.mrpc", run, args)


if __name__ == "__main__":
    main()
