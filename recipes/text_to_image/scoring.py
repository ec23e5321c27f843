"""Scores how well pictures agree with their captions, and compares with real pictures.

Shapes: B pictures of a batch, 8x8 pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from recipes.common.sections import Row, Section, section
from recipes.text_to_image.data import TextToImageData
from recipes.text_to_image.digits import PAIRS, paint
from recipes.text_to_image.judge import SCORES, count
from recipes.text_to_image.requests import Request

_GOALS = {"agreement": 90.0, "agreement_held_out": 60.0}
_LABELS = {
    "agreement": "agrees on digit and colour",
    "agreement_held_out": "of pairs never shown",
    "digit": "on the digit",
    "colour": "on the colour",
    "distance": "distance to the nearest training digit",
}


def judge_pictures(
    data: TextToImageData, painted: Sequence[tuple[list[Request], Tensor]]
) -> dict[str, float]:
    """Returns the sums of `judge.count` over the pictures of this rank.

    It waits for the device once a batch.

    Args:
        data: the data, which have the classifier.
        painted: for each batch, the requests that are no padding, and its pictures [B, 3, 8, 8],
            from 0 to 1, of which the first ones belong to these requests.
    """
    pair_of = {pair.caption: pair for pair in PAIRS}
    pairs = [pair_of[each.prompt] for requests, _ in painted for each in requests]
    found = [pictures[: len(requests)].float().cpu().numpy() for requests, pictures in painted]
    pictures = np.concatenate([np.empty((0, 3, 8, 8), np.float32), *found])
    if not len(pictures):
        return dict.fromkeys(("pictures", "held_out", *SCORES), 0.0)
    return count(pairs, data.judge.look(pictures))


def real_scores(data: TextToImageData, split: str) -> dict[str, float]:
    """Returns the agreement in percent, and the mean distance, of a split's real digits."""
    digits = data.split(split)
    colours = np.arange(len(digits.digits)) % len({pair.colour for pair in PAIRS})
    painted = [paint(ink, colour) for ink, colour in zip(digits.ink, colours, strict=True)]
    verdict = data.judge.look(np.stack(painted) / 2 + 0.5)
    agrees = (verdict.digits == digits.digits) & (verdict.colours == colours)
    return {"agreement": 100 * agrees.mean(), "distance": float(verdict.distances.mean())}


def judged_section(scores: Mapping[str, float], data: TextToImageData, split: str) -> list[Section]:
    """Gives the scores, with their goals and those of real pictures, as a section of the report."""
    real = real_scores(data, split)
    rows = []
    for name, value in scores.items():
        beside = f" (real, held out: {real[name]:.1f})" if name in real else ""
        unit = "" if name == "distance" else " %"
        goal = _GOALS.get(name)
        asked = () if goal is None else (f"at least {goal:.0f} %", value >= goal)
        rows.append(Row(_LABELS[name], f"{value:.1f}{unit}{beside}", *asked))
    number = len(data.judged(split))
    return [section(f"{split}: {number} pictures, judged by a classifier of real digits", rows)]
