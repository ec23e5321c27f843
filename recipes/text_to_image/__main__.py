"""`python -m recipes.text_to_image fit|validate|test|predict|export`: see README.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.common import entrypoint

if TYPE_CHECKING:
    from lightning.pytorch.cli import ArgsType

    from recipes.common.cli import RecipeCLI


def run(args: ArgsType = None, **options: Any) -> RecipeCLI:
    """Parses the arguments (the command line's by default) and runs the command."""
    from recipes.text_to_image.versions import check_diffusers

    check_diffusers()
    from recipes.common import cli
    from recipes.text_to_image.data import TextToImageData
    from recipes.text_to_image.module import TextToImage

    return cli.run(TextToImage, TextToImageData, args, **options)


def export_folder(checkpoint: Path, output: Path) -> str:
    """Writes what `fit` trained in diffusers' layout; see `exporting.py`."""
    from recipes.text_to_image.versions import check_diffusers

    check_diffusers()
    from recipes.text_to_image.exporting import export

    return export(checkpoint, output)


def main(args: Sequence[str] | None = None, program: str = "") -> None:
    """Runs one of the Trainer's commands, or `export`; see `front.main`."""
    entrypoint.main(__file__, run, args, program, export_folder)


if __name__ == "__main__":
    main()
