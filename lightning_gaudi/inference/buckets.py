"""Pads prompts of mixed length to a few widths, so that a device compiles few graphs.

Prompts are padded on the left, so that the next token of all rows is in the same column.

B prompts in a batch, T tokens that each is padded to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

DEFAULT_BUCKETS = (16, 32, 64, 128, 256, 512, 1024)
"""The widths by default; one that is not used costs nothing."""


class LeftPadded(NamedTuple):
    """The prompts of a batch, on the CPU."""

    input_ids: Tensor
    """[B, T] int64."""
    attention_mask: Tensor
    """[B, T] int64, 1 where a token belongs to the prompt."""


def pad_left(
    prompts: Sequence[Sequence[int]], buckets: Sequence[int], pad_token_id: int
) -> LeftPadded:
    """Pads prompts on the left, to the smallest bucket that holds all of them.

    Args:
        prompts: The tokens of each prompt.
        buckets: Widths, ascending.
        pad_token_id: The token to pad with.

    Raises:
        ValueError: There is no prompt, or one has no tokens or more than the largest bucket holds.
    """
    if not prompts:
        raise ValueError("There are no prompts to pad. Give at least one.")
    for row, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(empty_prompt(row))
    width = bucket_for(max(map(len, prompts)), buckets)
    ids = torch.full((len(prompts), width), pad_token_id)
    mask = torch.zeros(len(prompts), width, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt, dtype=torch.long)
        mask[row, width - len(prompt) :] = 1
    return LeftPadded(ids, mask)


def check_buckets(buckets: Sequence[int]) -> tuple[int, ...]:
    """Returns the widths, which must ascend from at least 1.

    Raises:
        ValueError: They do not.
    """
    widths = tuple(buckets)
    if not widths or any(b <= a for a, b in zip((0, *widths), widths, strict=False)):
        raise ValueError(
            f"buckets={widths} must be whole numbers that ascend from at least 1, such as "
            f"{DEFAULT_BUCKETS[:4]}."
        )
    return widths


def bucket_for(num_tokens: int, buckets: Sequence[int]) -> int:
    """Returns the smallest bucket that holds so many tokens.

    Raises:
        ValueError: No bucket does.
    """
    for width in check_buckets(buckets):
        if num_tokens <= width:
            return width
    raise ValueError(
        f"A prompt has {num_tokens} tokens but the largest bucket holds {buckets[-1]}. Truncate "
        "in the tokenizer, or add a larger bucket."
    )


def extend_left(tensor: Tensor, width: int, value: int) -> Tensor:
    """Returns a batch [B, T] on its device, padded on the left to [B, width]."""
    return F.pad(tensor, (width - tensor.shape[1], 0), value=value)


def empty_prompt(row: int) -> str:
    """Returns the message for a prompt without tokens."""
    return f"Prompt {row} has no tokens. Leave it out, or begin it with a token such as <s>."
