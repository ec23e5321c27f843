"""What a model must beat: always saying yes, and a regression on the overlap of words."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, precision_recall_curve
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from recipes.mrpc.formats import Pair

Scores = dict[str, tuple[float, float]]
"""F1 and accuracy, by name."""

_MAX_FITTED = 20_000  # pairs, for two dozen features
_WORD = re.compile(r"\w+(?:'\w+)?|[^\w\s]")


def baseline_scores(train: Sequence[Pair], pairs: Sequence[Pair]) -> Scores:
    """F1 and accuracy on `pairs`, by name of the baseline; without `train`, there is one only."""
    labels = np.array([pair.label for pair in pairs])
    predictions = {"always a paraphrase": np.ones(len(pairs), np.int64)}
    if train:
        predictions["overlap of words"] = overlap(train, pairs)
    return {
        name: (float(f1_score(labels, found)), float(accuracy_score(labels, found)))
        for name, found in predictions.items()
    }


def overlap(train: Sequence[Pair], pairs: Sequence[Pair]) -> np.ndarray:
    """[number of pairs], int64: what a logistic regression fitted on `train` predicts.

    Its features see how many words, and how many two and three words in a row, the sentences share
    and do not share, and how long they are: no word is known by name. Predictions are made at the
    threshold that has the best F1 on `train`.
    """
    regression = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    labels = np.array([pair.label for pair in train[:_MAX_FITTED]])
    features = overlap_features(train[:_MAX_FITTED])
    regression.fit(features, labels)
    precision, recall, thresholds = precision_recall_curve(
        labels, regression.predict_proba(features)[:, 1]
    )
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-9)
    threshold = thresholds[f1[:-1].argmax()]
    return (regression.predict_proba(overlap_features(pairs))[:, 1] >= threshold).astype(np.int64)


def overlap_features(pairs: Sequence[Pair]) -> np.ndarray:
    """[number of pairs, number of features], float64."""
    return np.array([_features(pair) for pair in pairs])


def _features(pair: Pair) -> list[float]:
    first, second = (_WORD.findall(text.lower()) for text in (pair.first, pair.second))
    lengths = sorted((len(first), len(second)))
    features = [float(lengths[0]), float(lengths[1]), lengths[0] / lengths[1]]
    for size in (1, 2, 3):
        one, other = _ngrams(first, size), _ngrams(second, size)
        shared = len(one & other)
        sizes = sorted((max(1, len(one)), max(1, len(other))))
        features += [
            float(shared),
            shared / len(one | other) if one or other else 0.0,  # Jaccard
            shared / sizes[0],
            shared / sizes[1],
            float(min(len(one), len(other)) - shared),
            float(max(len(one), len(other)) - shared),
        ]
    return features


def _ngrams(words: list[str], size: int) -> set[tuple[str, ...]]:
    return set(zip(*(words[i:] for i in range(size)), strict=False))
