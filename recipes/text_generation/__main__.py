"""`python -m recipes.text_generation fit|validate|test|predict|export`: see README.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from recipes.common import entrypoint

if TYPE_CHECKING:
    from lightning.pytorch.cli import ArgsType

    from recipes.common.cli import RecipeCLI

LINKS = ("vocab_size", "tokenizer")


def run(args: ArgsType = None, **options: Any) -> RecipeCLI:
    """Parses the arguments (the command line's by default) and runs the command."""
    from recipes.common import cli
    from recipes.text_generation.data import TextData
    from recipes.text_generation.module import TextGeneration

    return cli.run(TextGeneration, TextData, args, links=LINKS, **options)


def main(args: Sequence[str] | None = None, program: str = "") -> None:
    """Runs one of the Trainer's commands, or `export`; see `front.main`."""
    entrypoint.main(__file__, run, args, program)


if __name__ == "__main__":
    main()
