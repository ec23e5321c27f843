"""`python -m recipes.text_generation fit|validate|test|predict|export`: see README.md."""

from __future__ import annotations

from recipes.common.entrypoint import RecipeProgram

LINKS = ("vocab_size", "tokenizer")
RECIPE = RecipeProgram(__file__, __package__ or "", "TextGeneration", "TextData", LINKS)
run, main = RECIPE.run, RECIPE.main

if __name__ == "__main__":
    main()
