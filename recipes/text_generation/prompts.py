"""Prompts as tokens: those that were given, of a column, or the beginnings of texts.

Shapes: T tokens of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from lightning.pytorch.utilities import rank_zero_warn
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from recipes.common.errors import UserError
from recipes.common.reader import Row


@dataclass(frozen=True)
class Prompt:
    """What a text begins with."""

    text: str
    tokens: list[int]
    """[T]."""
    following: list[int] = field(default_factory=list)
    """The tokens that really followed, where that is known."""


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


def encode(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    place: str,
    num_tokens: int | None,
    longest: int,
) -> list[Prompt]:
    """Returns the prompts as tokens.

    Args:
        texts: the prompts.
        tokenizer: the model's.
        place: where they are from, in messages.
        num_tokens: cut longer ones to so many; None cuts none.
        longest: tokens that the largest bucket holds.

    Raises:
        UserError: for prompts that do not fit, and those without a token.
    """
    encoded = tokenizer(list(texts), return_attention_mask=False, verbose=False)["input_ids"]
    prompts = []
    for number, (text, tokens) in enumerate(zip(texts, encoded, strict=True), 1):
        cut = tokens[:num_tokens]
        if not cut:
            raise UserError(f"{place}: prompt {number} of {len(texts)} has no token: {text!r:.60}.")
        if len(cut) > longest:
            raise UserError(
                f"{place}: prompt {number} of {len(texts)} has {len(cut)} tokens, but the largest "
                f"bucket holds {longest}: {text!r:.60}. Add a larger one to data.prompt_buckets, "
                f"or cut prompts with data.prompt_tokens={longest}."
            )
        is_cut = len(cut) < len(tokens)
        prompts.append(Prompt(tokenizer.decode(cut) if is_cut else text, list(cut)))
    return prompts


def beginnings(
    texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, num_tokens: int, max_prompts: int
) -> list[Prompt]:
    """Gives the first tokens of texts that are at least twice as long, and what followed there."""
    encoded = (
        tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in texts
    )
    long = (tokens for tokens in encoded if len(tokens) >= 2 * num_tokens)
    return [
        Prompt(tokenizer.decode(tokens[:num_tokens]), tokens[:num_tokens], tokens[num_tokens:])
        for tokens in islice(long, max_prompts)
    ]


class PromptTokens(Dataset[tuple[int, list[int]]]):
    """The number and the tokens of each prompt."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self.prompts = prompts

    @property
    def lengths(self) -> np.ndarray:
        """[number of prompts], tokens of each."""
        return np.array([len(prompt.tokens) for prompt in self.prompts])

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, index: int) -> tuple[int, list[int]]:
        return index, self.prompts[index].tokens
