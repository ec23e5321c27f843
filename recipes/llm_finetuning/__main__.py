"""`python -m recipes.llm_finetuning fit|validate|test|predict|export`: see README.md."""

from __future__ import annotations

from pathlib import Path

from recipes.common.entrypoint import RecipeProgram

KINDS = {
    "adapter": "the adapter alone, in peft's format",
    "merged": "the base model, with the adapter added to its weights",
}
"""The exports of a checkpoint of model.method=lora or qlora, by their option, with its help."""


def _export(checkpoint: Path, output: Path, kind: str | None) -> str:
    from recipes.llm_finetuning.exporting import export  # imports transformers

    return export(checkpoint, output, kind)


RECIPE = RecipeProgram(
    __file__,
    __package__ or "",
    "LlmFinetuning",
    "LlmData",
    ("vocab_size", "tokenizer"),
    export=_export,
    export_kinds=KINDS,
)
run, main = RECIPE.run, RECIPE.main

if __name__ == "__main__":
    main()
