"""`python -m recipes.bert_pretraining fit|validate|test|predict|export`: see README.md."""

from __future__ import annotations

from recipes.common.entrypoint import RecipeProgram

LINKS = ("vocab_size", "max_seq_length", "next_sentence")
RECIPE = RecipeProgram(__file__, __package__ or "", "BertPretraining", "BertData", LINKS)
run, main = RECIPE.run, RECIPE.main

if __name__ == "__main__":
    main()
