"""Scores what a language model must beat: the frequencies of tokens, and of pairs of them."""

from __future__ import annotations

import numpy as np

_COUNTED = 0.9
"""The share of the text that is counted while the weights are tuned on the rest."""
_STEPS = 200
_TOLERANCE = 1e-6


class Bigrams:
    """Predicts by interpolated bigrams, a mixture of three distributions of the next token.

    They are its frequency after the token before it, its frequency, and all tokens alike. The
    weights depend on how often the token before was seen (Jelinek and Mercer, 1980), in powers of
    two. They are the best for the end of the text with counts of what stands before it, by
    expectation maximization; then all of the text is counted.

    Args:
        text: [number of tokens], nothing of what is judged.
        vocab_size: number of tokens that there are (V).
    """

    def __init__(self, text: np.ndarray, vocab_size: int) -> None:
        self._size = vocab_size
        self._weights = np.full((len(text).bit_length() + 1, 3), 1 / 3)
        self._weights[0] = 0, 1 / 2, 1 / 2  # a token that was never seen has no known followers
        end = int(_COUNTED * len(text))
        self._count(text[:end])
        self._tune(text[end - 1 :])
        self._count(text)

    def perplexity(self, text: np.ndarray) -> float:
        """Returns the perplexity of each token of [number of tokens] after the one before it."""
        mixed = (self._parts(text) * self._weights[self._class_of(text[:-1])]).sum(-1)
        return float(np.exp(-np.log(mixed).mean()))

    def unigram_perplexity(self, text: np.ndarray) -> float:
        """Returns the perplexity by the frequencies alone; each counts once more than seen."""
        smoothed = (self._counts + 1) / (self._num_tokens + self._size)
        return float(np.exp(-np.log(smoothed[text[1:]]).mean()))

    def _count(self, text: np.ndarray) -> None:
        self._num_tokens = len(text)
        self._counts = np.bincount(text, minlength=self._size)
        self._followed = np.bincount(text[:-1], minlength=self._size)
        self._seen_pairs, self._pair_counts = np.unique(self._pairs(text), return_counts=True)

    def _tune(self, held_out: np.ndarray) -> None:
        parts, classes = self._parts(held_out), self._class_of(held_out[:-1])
        last = -np.inf
        for _ in range(_STEPS):
            shares = parts * self._weights[classes]
            totals = shares.sum(-1, keepdims=True)
            summed = np.stack(
                [np.bincount(classes, column, len(self._weights)) for column in (shares / totals).T]
            ).T
            seen = summed.sum(-1) > 0
            self._weights[seen] = summed[seen] / summed[seen].sum(-1, keepdims=True)
            likelihood = float(np.log(totals).mean())
            if likelihood - last < _TOLERANCE:
                break
            last = likelihood

    def _parts(self, text: np.ndarray) -> np.ndarray:
        """Returns the probabilities that are mixed, [number of tokens - 1, 3]."""
        pairs = self._pairs(text)
        places = np.searchsorted(self._seen_pairs, pairs).clip(max=len(self._seen_pairs) - 1)
        counts = np.where(self._seen_pairs[places] == pairs, self._pair_counts[places], 0)
        after = counts / self._followed[text[:-1]].clip(min=1)
        alone = self._counts[text[1:]] / self._num_tokens
        return np.stack([after, alone, np.full(len(pairs), 1 / self._size)], axis=1)

    def _pairs(self, text: np.ndarray) -> np.ndarray:
        return text[:-1].astype(np.int64) * self._size + text[1:]

    def _class_of(self, tokens: np.ndarray) -> np.ndarray:
        return np.ceil(np.log2(self._followed[tokens] + 1)).astype(np.int64)
