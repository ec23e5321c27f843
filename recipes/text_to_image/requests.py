"""Makes the list of pictures to paint: a prompt, a negative prompt and a seed for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from recipes.common.errors import UserError
from recipes.text_to_image.digits import PAIRS

_MAX_SEED = 2**63


class Request(NamedTuple):
    """A picture that is to be painted."""

    index: int
    """Its number, in the order of the prompts."""
    prompt: str
    seed: int
    """The seed of its noise. The picture depends on seed and prompts, not on the batch."""
    negative_prompt: str | None = None


def make_requests(
    prompts: Sequence[str],
    negative_prompts: Sequence[str],
    num_images_per_prompt: int,
    seeds: Sequence[int],
) -> list[Request]:
    """Returns the pictures in the order of the prompts; those of a prompt follow one another.

    Args:
        prompts: one or more prompts.
        negative_prompts: none, one for all prompts, or one for each prompt.
        num_images_per_prompt: the number of pictures of each prompt.
        seeds: a seed for each picture, or the seed of the first one, from which the others count
            up.

    Raises:
        UserError: The number of any of them is wrong, or a seed is out of range.
    """
    if num_images_per_prompt < 1:
        raise UserError(f"data.num_images_per_prompt={num_images_per_prompt} must be at least 1.")
    if len(negative_prompts) not in (0, 1, len(prompts)):
        raise UserError(
            f"data.negative_prompts has {len(negative_prompts)} prompts, and data.prompts has "
            f"{len(prompts)}. Give no negative prompt, one for all, or {len(prompts)}."
        )
    count = len(prompts) * num_images_per_prompt
    if len(seeds) not in (1, count):
        raise UserError(
            f"data.seeds has {len(seeds)} seeds for {count} pictures ({len(prompts)} prompts x "
            f"{num_images_per_prompt}). Give one, from which the others count up, or {count}."
        )
    if wrong := [seed for seed in seeds if not 0 <= seed < _MAX_SEED]:
        raise UserError(f"data.seeds has {wrong[0]}. Give seeds from 0 to 2**63 - 1.")
    negatives: list[str | None] = list(negative_prompts) or [None]
    if len(negatives) == 1:
        negatives = negatives * len(prompts)
    if len(seeds) == 1:
        seeds = range(seeds[0], seeds[0] + count)
    wanted = [
        (prompt, negative)
        for prompt, negative in zip(prompts, negatives, strict=True)
        for _ in range(num_images_per_prompt)
    ]
    return [
        Request(index, prompt, seed, negative)
        for index, ((prompt, negative), seed) in enumerate(zip(wanted, seeds, strict=True))
    ]


def requests_for_digits(num_pictures: int, first_seed: int) -> list[Request]:
    """Returns so many pictures of each pair of colour and digit, to be judged."""
    captions = [pair.caption for pair in PAIRS]
    return make_requests(captions, (), num_pictures, [first_seed])
