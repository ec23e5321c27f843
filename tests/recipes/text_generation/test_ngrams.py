"""The baselines are what they say: distributions that know the training text alone."""

import math
from collections import Counter

import numpy as np
import pytest

from recipes.text_generation.ngrams import Bigrams

SIZE = 7


def _text(seed: int, number: int) -> np.ndarray:
    """Each token makes the one after it likely."""
    rng, tokens = np.random.default_rng(seed), [0]
    for _ in range(number - 1):
        tokens.append((tokens[-1] * 2 + 1) % SIZE if rng.random() < 0.7 else rng.integers(SIZE - 1))
    return np.array(tokens)


def _probability(bigrams: Bigrams, first: int, second: int) -> float:
    return 1 / bigrams.perplexity(np.array([first, second]))


def test_unigrams_are_the_frequencies_of_the_text():
    text, judged = _text(0, 500), _text(1, 200)
    counts = Counter(text.tolist())
    losses = [-math.log((counts[token] + 1) / (500 + SIZE)) for token in judged[1:].tolist()]
    expected = math.exp(sum(losses) / len(losses))
    assert Bigrams(text, SIZE).unigram_perplexity(judged) == pytest.approx(expected)


def test_what_may_follow_a_token_adds_up_to_one():
    bigrams = Bigrams(_text(0, 500), SIZE)
    for first in range(SIZE):
        total = sum(_probability(bigrams, first, second) for second in range(SIZE))
        assert total == pytest.approx(1.0)


def test_bigrams_find_what_follows_and_know_of_pairs_that_they_have_not_seen():
    bigrams, judged = Bigrams(_text(0, 4000), SIZE), _text(1, 1000)
    # Of the text itself: 0.7 for the likely token, and a sixth of the rest for six of them.
    best = math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.05)))
    assert best * 0.9 < bigrams.perplexity(judged) < best * 1.15
    assert bigrams.perplexity(judged) < 0.6 * bigrams.unigram_perplexity(judged)
    assert _probability(bigrams, SIZE - 1, SIZE - 1) > 0


def test_the_weights_are_better_than_equal_ones():
    text, judged = _text(0, 2000), _text(1, 500)
    bigrams = Bigrams(text, SIZE)
    tuned = bigrams.perplexity(judged)
    bigrams._weights[1:] = 1 / 3
    assert tuned < bigrams.perplexity(judged)
