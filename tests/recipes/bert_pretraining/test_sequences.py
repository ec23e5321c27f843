import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from recipes.bert_pretraining.sequences import (
    IS_NEXT,
    IS_RANDOM,
    MIN_TOKENS,
    Partners,
    sentence_pairs,
    sequence_lengths,
    single_sequences,
)
from recipes.bert_pretraining.tokenized import TokenizedCorpus


def _corpus(documents: list[list[int]]) -> TokenizedCorpus:
    """Documents given by the lengths of their sentences; every token is its own position."""
    lengths = [length for document in documents for length in document]
    return TokenizedCorpus(
        tokens=np.arange(sum(lengths), dtype=np.uint32),
        sentence_starts=np.cumsum([0, *lengths]),
        document_starts=np.cumsum([0, *map(len, documents)]),
    )


def _random_corpus(num_documents: int = 300) -> TokenizedCorpus:
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 9, num_documents)
    return _corpus([rng.integers(3, 30, size).tolist() for size in sizes])


def _all(corpus: TokenizedCorpus) -> np.ndarray:
    return np.arange(corpus.num_documents)


def test_documents_are_cut_into_full_rows_and_a_remainder():
    corpus = _corpus([[10, 15], [], [5]])
    sequences = single_sequences(corpus, _all(corpus), max_seq_length=12)
    assert sequences[:, :2].tolist() == [[0, 10], [10, 20], [20, 25], [25, 30]]
    assert sequences[:, 4].tolist() == [0, 0, 0, 2]
    assert sequence_lengths(sequences).tolist() == [12, 12, 7, 7]


def test_documents_come_in_the_order_asked_for():
    corpus = _corpus([[10], [20], [30]])
    sequences = single_sequences(corpus, np.array([2, 0]), max_seq_length=100)
    assert sequences[:, :2].tolist() == [[30, 60], [0, 10]]


def test_single_sequences_cover_all_but_tiny_remainders():
    corpus = _corpus([[10, MIN_TOKENS - 1]])
    sequences = single_sequences(corpus, _all(corpus), max_seq_length=12)
    assert sequences[:, :2].tolist() == [[0, 10]]


@pytest.mark.parametrize("max_seq_length", [16, 64])
def test_pairs_fit_and_follow_one_another(max_seq_length):
    corpus = _random_corpus()
    pairs = _pairs(corpus, max_seq_length)
    ends = corpus.sentence_starts[corpus.document_starts]
    assert len(pairs) > 300
    assert sequence_lengths(pairs).max() <= max_seq_length
    assert (pairs[:, 1] > pairs[:, 0]).all()
    assert (pairs[:, 3] > pairs[:, 2]).all()
    assert (pairs[:, 1] == pairs[:, 2]).all()
    assert (pairs[:, 0] >= ends[pairs[:, 4]]).all()
    assert (pairs[:, 3] <= ends[pairs[:, 4] + 1]).all()


def test_pairs_are_whole_sentences_where_they_fit():
    corpus = _random_corpus()
    pairs = _pairs(corpus, 64)
    is_whole = np.isin(pairs[:, :4], corpus.sentence_starts).all(axis=1)
    longest_two = 2 * np.diff(corpus.sentence_starts).max()
    assert longest_two < 61
    assert is_whole.all()


def test_pairs_cover_every_document_of_more_than_one_sentence():
    corpus = _corpus([[9], [5, 6, 7], [100, 100], [8, 8, 100]])
    pairs = _pairs(corpus, 30)
    assert set(pairs[:, 4].tolist()) == {1, 2, 3}
    lengths = sequence_lengths(pairs[pairs[:, 4] == 2])
    assert lengths.tolist() == [30]  # shortened at the far ends
    # The last sentence stands alone: it goes with the one before it.
    assert pairs[pairs[:, 4] == 3].tolist()[-1] == [235, 243, 243, 262, 3]


def test_a_sentence_without_a_token_makes_no_segment():
    pairs = _pairs(_corpus([[5, 0, 6], [0, 7], [0]]), 30)
    assert pairs.tolist() == [[0, 5, 5, 11, 0]]


def test_no_pairs_are_an_empty_array():
    assert _pairs(_corpus([[9], [8]]), 30).shape == (0, 5)


def _pairs(corpus: TokenizedCorpus, max_seq_length: int) -> np.ndarray:
    return sentence_pairs(corpus, _all(corpus), max_seq_length, np.random.default_rng(0))


def _drawn(pairs: np.ndarray, epoch: int) -> np.ndarray:
    """[number of pairs, 3]: start, stop and label of the second segments in an epoch."""
    partners, rng = Partners.of(pairs), np.random.default_rng((0, epoch))
    return np.array([partners.draw(pairs, i, epoch, rng) for i in range(len(pairs))])


def test_half_of_the_pairs_are_exchanged_and_the_others_in_the_next_epoch():
    pairs = _pairs(_random_corpus(), 64)
    first, second = (_drawn(pairs, epoch)[:, 2] for epoch in (0, 1))
    assert abs(int((first == IS_NEXT).sum()) - int((first == IS_RANDOM).sum())) <= 1
    assert (first != second).all()


def test_a_label_says_where_the_second_segment_comes_from():
    corpus = _random_corpus()
    ends = corpus.sentence_starts[corpus.document_starts]
    pairs = _pairs(corpus, 64)
    drawn = _drawn(pairs, 0)
    document = np.searchsorted(ends, drawn[:, 0], side="right") - 1
    is_next = drawn[:, 2] == IS_NEXT
    assert (drawn[is_next, :2] == pairs[is_next, 2:4]).all()
    assert (document[is_next] == pairs[is_next, 4]).all()
    assert (document[~is_next] != pairs[~is_next, 4]).all()


def test_partners_are_other_ones_in_every_epoch():
    pairs = _pairs(_random_corpus(), 64)
    first, third = (_drawn(pairs, epoch) for epoch in (0, 2))
    is_random = first[:, 2] == IS_RANDOM
    assert (first[is_random, 0] != third[is_random, 0]).mean() > 0.8


def test_exchanged_segments_are_never_longer_and_hardly_ever_shorter():
    pairs = _pairs(_random_corpus(), 64)
    drawn = _drawn(pairs, 0)
    lost = (pairs[:, 3] - pairs[:, 2]) - (drawn[:, 1] - drawn[:, 0])
    assert lost.min() == 0
    assert lost.mean() < 0.5


def test_lengths_do_not_tell_the_label():
    pairs = _pairs(_random_corpus(num_documents=3000), 64)
    drawn = _drawn(pairs, 0)
    lengths = np.stack([pairs[:, 1] - pairs[:, 0], drawn[:, 1] - drawn[:, 0]], axis=1)
    is_even, labels = pairs[:, 4] % 2 == 0, drawn[:, 2]
    guesser = HistGradientBoostingClassifier(max_iter=50).fit(lengths[is_even], labels[is_even])
    assert guesser.score(lengths[~is_even], labels[~is_even]) < 0.54


def test_text_of_one_document_gives_only_pairs_that_belong_together():
    pairs = _pairs(_corpus([[9] * 12]), 40)
    assert (_drawn(pairs, 0)[:, 2] == IS_NEXT).all()
