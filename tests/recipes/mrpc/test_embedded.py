import numpy as np
import pytest

from recipes.mrpc import embedded
from recipes.mrpc.baselines import baseline_scores, overlap_features
from recipes.mrpc.embedded import POSITIVE_SHARE, embedded_pairs
from recipes.mrpc.pairs import Pair

SETTINGS = {"packages": (), "pairs_per_sentence": 1, "validation_share": 0.1, "seed": 0}


@pytest.fixture(scope="module")
def pairs():
    """Of the standard library's documentation alone: enough, and quickly read."""
    return embedded_pairs(**SETTINGS)


def test_as_many_pairs_are_paraphrases_as_in_mrpc(pairs):
    for split in pairs.values():
        assert len(split) > 300
        share = sum(pair.label for pair in split) / len(split)
        assert share == pytest.approx(POSITIVE_SHARE, abs=1 / len(split))


def test_no_split_has_sentences_of_another(monkeypatch):
    rewritten = {}
    monkeypatch.setattr(embedded, "paraphrase", lambda sentence, rng: sentence)
    monkeypatch.setattr(embedded, "alter", lambda sentence, rng: None)
    for split, found in embedded_pairs(**SETTINGS).items():
        rewritten[split] = {text for pair in found for text in pair[:2]}
    assert not rewritten["train"] & rewritten["validation"]
    assert not rewritten["train"] & rewritten["test"]
    assert not rewritten["validation"] & rewritten["test"]


def test_the_same_seed_makes_the_same_pairs(pairs):
    assert embedded_pairs(**SETTINGS) == pairs
    assert embedded_pairs(**(SETTINGS | {"seed": 1}))["train"] != pairs["train"]


def test_more_pairs_a_sentence_make_other_pairs_of_the_same_sentences(pairs):
    more = embedded_pairs(**(SETTINGS | {"pairs_per_sentence": 2}))
    assert len(more["train"]) == 2 * len(pairs["train"])
    assert more["train"][: len(pairs["train"])] == pairs["train"]
    assert more["train"][len(pairs["train"]) :] != pairs["train"]
    assert more["validation"] == pairs["validation"]


def test_the_overlap_of_words_helps_but_does_not_decide(pairs):
    scores = baseline_scores(pairs["train"], pairs["validation"])
    (majority, majority_accuracy), (overlap, overlap_accuracy) = scores.values()
    assert majority == pytest.approx(2 * POSITIVE_SHARE / (1 + POSITIVE_SHARE), abs=0.005)
    assert majority_accuracy == pytest.approx(POSITIVE_SHARE, abs=0.005)
    assert majority + 0.03 < overlap < 0.95
    assert majority_accuracy + 0.05 < overlap_accuracy < 0.95


def test_overlap_features_count_what_is_shared():
    same, none = (
        overlap_features([Pair(one, other, None)])[0]
        for one, other in (("a b c d", "a b c d"), ("a b c d", "e f g h"))
    )
    # For one, two and three words in a row: shared, as parts of the fewer and of the more, not
    # shared; at last the lengths.
    assert same[-2:].tolist() == none[-2:].tolist() == [4, 4]
    assert same[[0, 5, 10]].tolist() == [4, 3, 2]
    assert same[[1, 2, 6, 7, 11, 12]].tolist() == [1] * 6
    assert not none[[0, 1, 2, 5, 6, 7, 10, 11, 12]].any()
    turned = overlap_features([Pair("d c b a", "a b c d", None)])[0]
    assert turned[[0, 5]].tolist() == [4, 0]
    assert np.isfinite(overlap_features([Pair("a", "b", None)])).all()


def test_the_regression_finds_what_overlap_tells():
    words = [f"w{i}" for i in range(12)]
    rng = np.random.default_rng(0)
    train = []
    for _ in range(300):
        first, second = (" ".join(rng.permutation(words)[:6]) for _ in range(2))
        train += [Pair(first, first + " more", 1), Pair(first, second, 0)]
    scores = baseline_scores(train[:400], train[400:])
    assert scores["overlap of words"][0] > 0.95
    assert scores["always a paraphrase"] == pytest.approx((2 / 3, 0.5))
