"""Reads prompts from a list or from a text file with one a line, and turns them into tokens.

Shapes: T tokens of a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from lightning_gaudi.inference import pad_left
from recipes.common.errors import UserError
from recipes.common.tables import lines


@dataclass(frozen=True)
class Prompt:
    """The beginning of a text that a model continues."""

    text: str
    tokens: list[int]
    """[T]."""
    following: list[int] = field(default_factory=list)
    """The tokens that really followed, if these are known."""


def given_prompts(prompts: Sequence[str] | None, file: str | None) -> list[str] | None:
    """Returns the prompts of the settings `data.prompts` and `data.prompts_file`.

    Args:
        prompts: as set, or None.
        file: a text file in UTF-8; its blank lines are no prompts.

    Returns:
        The prompts as they are written, at least one; None where neither is set.

    Raises:
        UserError: naming the setting, if both are set, or there is no prompt, or an empty one, or
            no such file.
    """
    if prompts is not None and file is not None:
        raise UserError(
            "data.prompts and data.prompts_file are both set, and prompts come from one place. "
            "Leave out one of them."
        )
    if file is not None:
        return _read(file)
    if prompts is None:
        return None
    if not prompts:
        raise UserError(
            "data.prompts is an empty list. Give texts: --data.prompts '[\"Once upon a time\"]'."
        )
    for number, prompt in enumerate(prompts, 1):
        if not prompt.strip():
            raise UserError(
                f"data.prompts: prompt {number} of {len(prompts)} is empty. Write something, or "
                "remove it."
            )
    return list(prompts)


def encode_prompts(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    place: str,
    num_tokens: int | None,
    longest: int,
    has_special_tokens: bool = False,
) -> list[Prompt]:
    """Returns the prompts as tokens.

    Args:
        texts: the prompts.
        tokenizer: the model's.
        place: where they are from, in messages.
        num_tokens: cut longer ones to so many; None cuts none.
        longest: tokens that the largest bucket holds.
        has_special_tokens: a chat template has written them already; to cut them would spoil it.

    Raises:
        UserError: for prompts that do not fit, and those without a token.
    """
    encoded = tokenizer(
        list(texts),
        add_special_tokens=not has_special_tokens,
        return_attention_mask=False,
        verbose=False,
    )["input_ids"]
    prompts = []
    for number, (text, tokens) in enumerate(zip(texts, encoded, strict=True), 1):
        cut = tokens[:num_tokens]
        if not cut:
            raise UserError(f"{place}: prompt {number} of {len(texts)} has no token: {text!r:.60}.")
        if len(cut) > longest:
            or_cut = f", or cut prompts with data.prompt_tokens={longest}"
            raise UserError(
                f"{place}: prompt {number} of {len(texts)} has {len(cut)} tokens, but the largest "
                f"bucket holds {longest}: {text!r:.60}. Add a larger one to data.prompt_buckets"
                f"{'' if has_special_tokens else or_cut}."
            )
        is_cut = len(cut) < len(tokens)
        prompts.append(Prompt(tokenizer.decode(cut) if is_cut else text, list(cut)))
    return prompts


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


def pad_prompts(
    samples: list[tuple[int, list[int]]], length: int, pad_token: int
) -> dict[str, Any]:
    """Returns input_ids and attention_mask, int64 [B, length]; numbers, a list of B."""
    padded = pad_left([tokens for _, tokens in samples], [length], pad_token)
    return {**padded._asdict(), "numbers": [number for number, _ in samples]}


def _read(file: str) -> list[str]:
    path = Path(file).expanduser()
    if not path.is_file():
        kind = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(
            f"data.prompts_file={file} {kind}. Name a text file with one prompt a line."
        )
    try:
        found = [line.rstrip("\r\n") for line in lines(path)]
    except UserError as error:  # its message calls every file data.path
        raise UserError(str(error).replace("data.path=", "data.prompts_file=")) from error
    if found := [prompt for prompt in found if prompt.strip()]:
        return found
    raise UserError(f"data.prompts_file={file} has no prompt: write one a line.")
