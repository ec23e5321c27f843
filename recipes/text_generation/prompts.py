"""Makes prompts of a column, or of the beginnings of texts."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from lightning.pytorch.utilities import rank_zero_warn
from transformers import PreTrainedTokenizerBase

from recipes.common.errors import UserError
from recipes.common.prompts import Prompt
from recipes.common.reader import Row


def texts_of(rows: Iterable[Row], place: str, max_prompts: int | None) -> list[str]:
    """Returns the texts of rows; empty ones are left out.

    Raises:
        UserError: if none has a text, or one has something else.
    """
    found, num_empty = [], 0
    for row in rows:
        if text := row.text("text"):
            found.append(text)
        else:
            num_empty += 1
        if max_prompts is not None and len(found) == max_prompts:
            break
    if not found:
        raise UserError(f"{place}: all of its {num_empty} row(s) are empty. Name another column.")
    if num_empty:
        rank_zero_warn(f"{place}: {num_empty} row(s) without text are left out.")
    return found


def beginnings(
    texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, num_tokens: int, max_prompts: int
) -> list[Prompt]:
    """Returns the first tokens of texts at least twice as long, and what followed there."""
    encoded = (
        tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in texts
    )
    long = (tokens for tokens in encoded if len(tokens) >= 2 * num_tokens)
    return [
        Prompt(tokenizer.decode(tokens[:num_tokens]), tokens[:num_tokens], tokens[num_tokens:])
        for tokens in islice(long, max_prompts)
    ]
