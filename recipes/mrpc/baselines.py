"""Scores what a model must beat: always saying yes, and a regression on the overlap of words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from recipes.mrpc.pairs import Pair

Scores = dict[str, tuple[float, float]]
"""F1 and accuracy, by name."""

_ENOUGH = 5000  # training pairs, for 17 features
_WORD = re.compile(r"\w+(?:'\w+)?|[^\w\s]")


def baseline_scores(train: Sequence[Pair], pairs: Sequence[Pair]) -> Scores:
    """Returns F1 and accuracy on `pairs`, by baseline; without `train` there is no regression."""
    # The import takes half a second, which a run that only trains need not wait.
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import accuracy_score, f1_score, precision_recall_curve
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    labels = [pair.label for pair in pairs]
    found = {"always a paraphrase": np.ones(len(pairs), np.int64)}
    if train:
        fitted = train[:_ENOUGH]
        features, answers = overlap_features(fitted), [pair.label for pair in fitted]
        regression = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        guesses = regression.fit(features, answers).predict_proba(features)[:, 1]
        precision, recall, thresholds = precision_recall_curve(answers, guesses)
        best = thresholds[np.argmax((precision * recall / (precision + recall + 1e-9))[:-1])]
        guesses = regression.predict_proba(overlap_features(pairs))[:, 1]
        found["overlap of words"] = (guesses >= best).astype(np.int64)
    return {
        name: (float(f1_score(labels, guesses)), float(accuracy_score(labels, guesses)))
        for name, guesses in found.items()
    }


def overlap_features(pairs: Sequence[Pair]) -> np.ndarray:
    """Returns how much two sentences share of words and runs of words, [pairs, 17] float64."""
    return np.array([[*_overlaps(pair)] for pair in pairs])


def _overlaps(pair: Pair) -> Iterator[float]:
    both = [_WORD.findall(text.lower()) for text in pair[:2]]
    for size in (1, 2, 3):
        one, other = (set(zip(*(ws[i:] for i in range(size)), strict=False)) for ws in both)
        shared, (fewer, more) = len(one & other), sorted((len(one), len(other)))
        yield from (shared, shared / max(1, fewer), shared / max(1, more))
        yield from (fewer - shared, more - shared)
    yield from sorted(map(len, both))
