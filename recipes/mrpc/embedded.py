"""The embedded task: pairs that rules made from real sentences, labelled as such everywhere.

A pair is a sentence of the documentation of Python and torch and
- a paraphrase of it (label 1, 67.5 % as in MRPC), or with label 0
- a paraphrase of it after one word or two were changed so that it says something else (an
  opposite, a negation, another number, exchanged roles), or
- a paraphrase of another sentence with some of the same words.

All go through the same paraphrasing, and the two sentences stand in either order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from random import Random

from lightning_gaudi.data import embedded_documents
from lightning_gaudi.data.text import count_words
from recipes.mrpc.formats import Pair, Splits
from recipes.mrpc.rewriting import alter, paraphrase

POSITIVE_SHARE = 0.675
"""As in MRPC: 3,900 of its 5,801 pairs."""
ALTERED_SHARE = 0.5
"""Of the negatives: those that keep the words of the sentence but for one or two."""
_MIN_WORDS, _MAX_WORDS = 5, 14
_MAX_SENTENCES_WITH_WORD = 400
_SPLITS = ("train", "validation", "test")


def embedded_pairs(
    packages: Sequence[str], pairs_per_sentence: int, validation_share: float, seed: int
) -> Splits:
    """Pairs of each split.

    A document belongs to one split with all of its sentences, so no sentence, and none that was
    written beside it, is in two of them.

    Args:
        packages: installed packages whose documentation is read, besides Python's.
        pairs_per_sentence: how often each training sentence is rewritten. Held-out ones are once.
        validation_share: share of the documents for validation, and as many for test.
        seed: of the split and of the rules.
    """
    documents = list(embedded_documents(packages))
    rng = Random(f"split {seed}")
    rng.shuffle(documents)
    size = max(1, round(validation_share * len(documents)))
    parts = documents[2 * size :], documents[:size], documents[size : 2 * size]
    pairs: Splits = {}
    for split, part in zip(_SPLITS, parts, strict=True):
        found = [s for d in part for s in d if _MIN_WORDS <= count_words(s) <= _MAX_WORDS]
        repetitions = pairs_per_sentence if split == "train" else 1
        pairs[split] = list(_pairs(found, repetitions, Random(f"{split} {seed}")))
    return pairs


def _pairs(sentences: list[str], repetitions: int, rng: Random) -> Iterator[Pair]:
    places = defaultdict(list)
    for i, sentence in enumerate(sentences):
        for word in _words(sentence):
            places[word].append(i)
    for _ in range(repetitions):
        labels = [int(i < POSITIVE_SHARE * len(sentences)) for i in range(len(sentences))]
        rng.shuffle(labels)
        for i, (sentence, label) in enumerate(zip(sentences, labels, strict=True)):
            other = sentence if label else _contradiction(i, sentences, places, rng)
            pair = [sentence, paraphrase(other, rng)]
            rng.shuffle(pair)
            yield Pair(*pair, label)


def _contradiction(
    index: int, sentences: list[str], places: dict[str, list[int]], rng: Random
) -> str:
    """A sentence that does not say the same as that of `index`."""
    if rng.random() < ALTERED_SHARE and (altered := alter(sentences[index], rng)):
        return altered[0]
    # Common words say little: sentences that share one have nothing in common.
    rare = [w for w in _words(sentences[index]) if 1 < len(places[w]) < _MAX_SENTENCES_WITH_WORD]
    candidates = places[rng.choice(rare)] if rare else range(len(sentences))
    others = [i for i in candidates if i != index]
    return sentences[rng.choice(others)]


def _words(sentence: str) -> list[str]:
    return sorted({word.strip(".,;:()'\"").lower() for word in sentence.split()})
