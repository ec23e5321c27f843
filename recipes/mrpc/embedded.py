"""Makes the embedded task: pairs that rules make of real sentences, and that say so everywhere.

A pair is a sentence of the documentation of Python and torch and, in either order, a paraphrase
- of itself (label 1), or with label 0
- of itself after one word or two were changed so that it says something else, or
- of another sentence with some of the same words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from random import Random

from lightning_gaudi.data import embedded_documents
from lightning_gaudi.data.text import count_words
from recipes.mrpc.pairs import Pair, Splits
from recipes.mrpc.rewriting import alter, paraphrase

POSITIVE_SHARE = 0.675  # as in MRPC: 3,900 of its 5,801 pairs
_NUM_WORDS = range(5, 15)
_MAX_SENTENCES_WITH_WORD = 400  # sentences that share a common word may have nothing else in common


def embedded_pairs(
    packages: Sequence[str], pairs_per_sentence: int, validation_share: float, seed: int
) -> Splits:
    """Returns pairs of each split; a document is in one of them, with all of its sentences.

    Args:
        packages: installed packages whose documentation is read, besides Python's.
        pairs_per_sentence: how often each training sentence is rewritten; held-out ones are once.
        validation_share: share of the documents for validation, and as many for test.
        seed: of the split and of the rules.
    """
    documents = list(embedded_documents(packages))
    Random(f"split {seed}").shuffle(documents)
    size = max(1, round(validation_share * len(documents)))
    parts = documents[2 * size :], documents[:size], documents[size : 2 * size]
    pairs: Splits = {}
    for split, part in zip(("train", "validation", "test"), parts, strict=True):
        found = [s for document in part for s in document if count_words(s) in _NUM_WORDS]
        repetitions = pairs_per_sentence if split == "train" else 1
        pairs[split] = list(_pairs(found, repetitions, Random(f"{split} {seed}")))
    return pairs


def _pairs(sentences: list[str], repetitions: int, rng: Random) -> Iterator[Pair]:
    words = [sorted({w.strip(".,;:()'\"").lower() for w in s.split()}) for s in sentences]
    places = defaultdict(list)
    for i, found in enumerate(words):
        for word in found:
            places[word].append(i)
    for _ in range(repetitions):
        labels = [int(i < POSITIVE_SHARE * len(sentences)) for i in range(len(sentences))]
        rng.shuffle(labels)
        for i, (sentence, label) in enumerate(zip(sentences, labels, strict=True)):
            other: str | None = sentence
            if not label:
                other = alter(sentence, rng) if rng.random() < 0.5 else None
            if other is None:
                rare = [w for w in words[i] if 1 < len(places[w]) < _MAX_SENTENCES_WITH_WORD]
                near = places[rng.choice(rare)] if rare else range(len(sentences))
                other = sentences[rng.choice([j for j in near if j != i])]
            pair = [sentence, paraphrase(other, rng)]
            rng.shuffle(pair)
            yield Pair(*pair, label)
