import numpy as np
import pytest

from recipes.bert_pretraining.sequences import (
    IS_NEXT,
    IS_RANDOM,
    MIN_TOKENS,
    sentence_pairs,
    sequence_lengths,
    single_sequences,
)
from recipes.bert_pretraining.tokenized import TokenizedCorpus


def _corpus(documents: list[list[int]]) -> TokenizedCorpus:
    """Documents given by the lengths of their sentences; every token is its own position."""
    lengths = [length for document in documents for length in document]
    return TokenizedCorpus(
        tokens=np.arange(sum(lengths), dtype=np.uint16),
        sentence_starts=np.cumsum([0, *lengths]),
        document_starts=np.cumsum([0, *map(len, documents)]),
    )


def _random_corpus() -> TokenizedCorpus:
    rng = np.random.default_rng(1)
    return _corpus([rng.integers(3, 30, rng.integers(1, 9)).tolist() for _ in range(300)])


def test_documents_are_cut_into_full_rows_and_a_remainder():
    sequences = single_sequences(_corpus([[10, 15], [5]]), max_seq_length=12)
    assert sequences[:, :2].tolist() == [[0, 10], [10, 20], [20, 25], [25, 30]]
    assert sequence_lengths(sequences).tolist() == [12, 12, 7, 7]


def test_single_sequences_cover_all_but_tiny_remainders():
    sequences = single_sequences(_corpus([[10, MIN_TOKENS - 1]]), max_seq_length=12)
    assert sequences[:, :2].tolist() == [[0, 10]]


@pytest.mark.parametrize("max_seq_length", [16, 64])
def test_pairs_fit_and_have_two_segments(max_seq_length):
    pairs = sentence_pairs(_random_corpus(), max_seq_length, np.random.default_rng(0))
    assert len(pairs) > 50
    assert sequence_lengths(pairs).max() <= max_seq_length
    assert (pairs[:, 1] > pairs[:, 0]).all()
    assert (pairs[:, 3] > pairs[:, 2]).all()


def test_next_sentence_labels_are_balanced_to_within_one():
    pairs = sentence_pairs(_random_corpus(), 64, np.random.default_rng(0))
    counts = np.bincount(pairs[:, 4], minlength=2)
    assert abs(int(counts[IS_NEXT]) - int(counts[IS_RANDOM])) <= 1


def test_labels_say_where_the_second_segment_comes_from():
    corpus = _random_corpus()
    ends = corpus.sentence_starts[corpus.document_starts]
    pairs = sentence_pairs(corpus, 512, np.random.default_rng(0))  # long: nothing is truncated
    first, second = (np.searchsorted(ends, pairs[:, i], side="right") for i in (0, 2))
    is_next = pairs[:, 4] == IS_NEXT
    assert (pairs[is_next, 1] == pairs[is_next, 2]).all()
    assert (first[is_next] == second[is_next]).all()
    assert (first[~is_next] != second[~is_next]).all()


def test_a_corpus_of_one_document_gives_no_random_pairs_and_ends():
    pairs = sentence_pairs(_corpus([[9] * 12]), 40, np.random.default_rng(0))
    assert pairs[:, 4].tolist() == [IS_NEXT]
