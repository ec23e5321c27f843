"""`python -m recipes.text_to_image fit|validate|test|predict|export`: see README.md."""

from __future__ import annotations

from pathlib import Path

from recipes.common.entrypoint import RecipeProgram


def check() -> None:
    """Raises if diffusers is too old; it is imported only here, since that takes seconds."""
    from recipes.text_to_image.versions import check_diffusers

    check_diffusers()


def export_folder(checkpoint: Path, output: Path) -> str:
    """Writes what `fit` trained in diffusers' layout; see `exporting.py`."""
    check()
    from recipes.text_to_image.exporting import export

    return export(checkpoint, output)


RECIPE = RecipeProgram(
    __file__, __package__ or "", "TextToImage", "TextToImageData", check=check, export=export_folder
)
run, main = RECIPE.run, RECIPE.main

if __name__ == "__main__":
    main()
