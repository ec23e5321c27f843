"""What a model must beat: always saying yes, and a regression on the overlap of words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from recipes.mrpc.pairs import Pair

Scores = dict[str, tuple[float, float]]
"""F1 and accuracy, by name."""

_MAX_FITTED = 20_000  # pairs, for 20 features
_WORD = re.compile(r"\w+(?:'\w+)?|[^\w\s]")


def baseline_scores(train: Sequence[Pair], pairs: Sequence[Pair]) -> Scores:
    """F1 and accuracy on `pairs`, by name of the baseline; without `train`, there is one only."""
    labels = np.array([pair.label for pair in pairs])
    found = {"always a paraphrase": np.ones(len(pairs), np.int64)}
    if train:
        fitted = train[:_MAX_FITTED]
        regression = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        regression.fit(overlap_features(fitted), [pair.label for pair in fitted])
        found["overlap of words"] = regression.predict(overlap_features(pairs))
    return {
        name: (float(f1_score(labels, guesses)), float(accuracy_score(labels, guesses)))
        for name, guesses in found.items()
    }


def overlap_features(pairs: Sequence[Pair]) -> np.ndarray:
    """[number of pairs, 20], float64: what the sentences share and do not; no word is known.

    For the words and for two and three in a row: how many are shared, by their union, and by the
    fewer and the more of both; and how many the two have.
    """
    return np.array([[*_overlaps(pair)] for pair in pairs])


def _overlaps(pair: Pair) -> Iterator[float]:
    first, second = (_WORD.findall(text.lower()) for text in (pair.first, pair.second))
    for size in (1, 2, 3):
        one, other = (
            set(zip(*(words[i:] for i in range(size)), strict=False)) for words in (first, second)
        )
        shared, (fewer, more) = len(one & other), sorted((len(one), len(other)))
        ratios = (shared / max(1, total) for total in (len(one | other), fewer, more))
        yield from (shared, *ratios, fewer - shared, more - shared)
    yield from sorted((len(first), len(second)))
