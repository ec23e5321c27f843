"""Judges whether a picture shows, say, a red seven, by a classifier of real pictures.

Shapes: N pictures, C colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.svm import SVC

from recipes.text_to_image.digits import HELD_OUT, PALETTE, Digits, Pair

_LEVELS = 16
"""The levels of a pixel in scikit-learn's data, in which distances are given."""

SCORES = ("agreement", "agreement_held_out", "digit", "colour", "distance")
"""The names of what is measured on pictures that were made for captions."""


class Verdict(NamedTuple):
    """Tells what is on pictures."""

    colours: NDArray[np.int64]
    """[N], the nearest of the palette."""
    digits: NDArray[np.int64]
    """[N], by the classifier."""
    distances: NDArray[np.float64]
    """[N], to the nearest training digit, in scikit-learn's levels of a pixel (0 to 16)."""


class Judge:
    """Judges by a support vector classifier of digits, and by the direction of a colour.

    Args:
        train: real digits; the classifier sees nothing else.
    """

    def __init__(self, train: Digits) -> None:
        self._train = train.ink.reshape(len(train.ink), -1)
        self._classifier = SVC(C=10.0, gamma=0.2).fit(self._train, train.digits)
        self._absorbed = 1 - np.array(list(PALETTE.values()))

    def look(self, pictures: NDArray[np.float32]) -> Verdict:
        """Returns what is on pictures.

        The colour is the one of the palette whose ink absorbs red, green and blue in the most
        similar proportion; the digit is then read from how much of this ink there is.

        Args:
            pictures: [N, 3, 8, 8], from 0 to 1.
        """
        absorbed = 1 - pictures.reshape(len(pictures), 3, -1).astype(np.float64)
        colours = np.argmax(_direction(absorbed.sum(-1)) @ _direction(self._absorbed).T, axis=1)
        inks = self._absorbed[colours]
        ink = np.einsum("ncp,nc->np", absorbed, inks) / (inks**2).sum(1, keepdims=True)
        return self.look_at_ink(ink.clip(0, 1), colours)

    def look_at_ink(self, ink: NDArray[np.float64], colours: NDArray[np.int64]) -> Verdict:
        """Returns the same of digits [N, 64] whose colours are known."""
        squares = (ink**2).sum(1)[:, None] + (self._train**2).sum(1) - 2 * ink @ self._train.T
        distances = _LEVELS * np.sqrt(squares.min(1).clip(0))
        return Verdict(colours, self._classifier.predict(ink), distances)


def count(pairs: Sequence[Pair], verdict: Verdict) -> dict[str, float]:
    """Returns sums over pictures, to be added up over ranks.

    Args:
        pairs: what should be on them.
        verdict: what is.
    """
    wanted = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    colour, digit = verdict.colours == wanted[:, 0], verdict.digits == wanted[:, 1]
    is_held_out = np.array([pair in HELD_OUT for pair in pairs], dtype=bool)
    both = colour & digit
    return {
        "pictures": len(pairs),
        "held_out": is_held_out.sum(),
        "agreement": both.sum(),
        "agreement_held_out": (both & is_held_out).sum(),
        "digit": digit.sum(),
        "colour": colour.sum(),
        "distance": verdict.distances.sum(),
    }


def means(sums: Mapping[str, float]) -> dict[str, float]:
    """Returns shares of the pictures, in percent, and the mean distance, by the names of `SCORES`.

    Args:
        sums: what `count` returns.
    """
    shares = {name: 1.0 if name == "distance" else 100.0 for name in SCORES}
    totals = {name: "held_out" if name == "agreement_held_out" else "pictures" for name in SCORES}
    return {
        name: share * sums[name] / max(sums[totals[name]], 1.0) for name, share in shares.items()
    }


def _direction(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, 1e-9))
