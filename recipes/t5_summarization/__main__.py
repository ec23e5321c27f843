"""`python -m recipes.t5_summarization fit|validate|test|predict|export`: see README.md."""

from __future__ import annotations

from recipes.common.entrypoint import RecipeProgram

LINKS = ("vocab_size", "tokenizer", "max_target_length")
RECIPE = RecipeProgram(__file__, __package__ or "", "T5Summarization", "SummarizationData", LINKS)
run, main = RECIPE.run, RECIPE.main

if __name__ == "__main__":
    main()
