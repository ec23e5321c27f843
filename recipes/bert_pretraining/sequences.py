"""Cuts documents into training sequences, which are ranges of the corpus and not copies of it.

A sequence is a row of five numbers, (first_start, first_stop, second_start, second_stop, document):
`[CLS] first [SEP]`, or with next-sentence prediction `[CLS] first [SEP] second [SEP]`. There the
row holds the text that follows; `Partners` says which other text takes its place, in which epoch.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from recipes.bert_pretraining.tokenized import TokenizedCorpus, damaged

MIN_TOKENS = 4
"""Shorter remainders of a document are dropped, since there is nothing to learn from them."""

IS_NEXT, IS_RANDOM, NO_LABEL = 0, 1, -100
_MIN_PARTNERS = 16
_MAX_DRAWS = 8


def num_special_tokens(next_sentence: bool) -> int:
    """[CLS] and one [SEP] for each segment."""
    return 3 if next_sentence else 2


def sequence_lengths(sequences: np.ndarray) -> np.ndarray:
    """[number of sequences]: the tokens of each, with its special tokens."""
    first = sequences[:, 1] - sequences[:, 0]
    second = sequences[:, 3] - sequences[:, 2]
    return first + second + 2 + (second > 0)


def single_sequences(
    corpus: TokenizedCorpus, documents: np.ndarray, max_seq_length: int
) -> np.ndarray:
    """Cuts each document into pieces that fill a row, and one shorter remainder.

    Args:
        corpus: the tokenized documents.
        documents: [number of documents], those to take, in this order.
        max_seq_length: tokens of a sequence, special tokens included.

    Returns:
        [number of sequences, 5], int64.
    """
    room = max_seq_length - num_special_tokens(next_sentence=False)
    begin = corpus.sentence_starts[corpus.document_starts[documents]]
    end = corpus.sentence_starts[corpus.document_starts[documents + 1]]
    num_pieces = -(-(end - begin) // room)
    before = np.cumsum(num_pieces) - num_pieces
    piece = np.arange(num_pieces.sum()) - np.repeat(before, num_pieces)
    start = np.repeat(begin, num_pieces) + room * piece
    stop = np.minimum(start + room, np.repeat(end, num_pieces))
    nothing = np.zeros_like(start)
    rows = np.stack([start, stop, nothing, nothing, np.repeat(documents, num_pieces)], axis=1)
    return rows[stop - start >= MIN_TOKENS]


def sentence_pairs(
    corpus: TokenizedCorpus, documents: np.ndarray, max_seq_length: int, rng: np.random.Generator
) -> np.ndarray:
    """Returns pairs of segments that follow one another: whole sentences, as many as fit.

    A document is cut into chunks of consecutive sentences, and each chunk in two at a random
    sentence. Where no two sentences fit, they are shortened at their far ends; a last sentence
    alone forms a pair with the one before it, and a document of one sentence gives none.

    Args:
        corpus: the tokenized documents.
        documents: [number of documents], those to take, in this order.
        max_seq_length: tokens of a pair, special tokens included.
        rng: draws where chunks are cut in two.

    Returns:
        [number of pairs, 5], int64.
    """
    room = max_seq_length - num_special_tokens(next_sentence=True)
    rows = array("q")
    for document in documents.tolist():
        starts = np.unique(corpus.sentences_of(document))  # no sentence without a token
        for index, stop in _chunks(starts, room):
            cut = int(rng.integers(index + 1, stop))
            begin, middle, end = (int(starts[i]) for i in (index, cut, stop))
            if end - begin > room:
                first = max(room - (end - middle), min(middle - begin, room // 2))
                begin, end = middle - first, min(end, middle + room - first)
            rows.extend((begin, middle, middle, end, document))
    return np.frombuffer(rows, np.int64).reshape(-1, 5)


def _chunks(starts: np.ndarray, room: int) -> Iterator[tuple[int, int]]:
    """Yields first and last + 1 of the sentences of each chunk: at least two of them."""
    index, last = 0, len(starts) - 1
    while index < last and last > 1:
        stop = int(np.searchsorted(starts, starts[index] + room, side="right")) - 1
        stop = min(max(stop, index + 2), last)
        index = min(index, stop - 2)
        yield index, stop
        index = stop


@dataclass(frozen=True)
class Partners:
    """Chooses the second segment of pairs that do not belong together.

    It is the second segment of another pair, of another document and of the same length. So under
    both labels segments are alike in all that can be seen in one of them: lengths, where they end,
    how often they occur. Only what the two segments have to do with each other tells the label.
    And every epoch has other partners and exchanges the labels, so none can be learnt by heart.
    """

    by_length: np.ndarray
    """[number of pairs], int64: their indices, in the order of the length of the second segment."""
    sorted_lengths: np.ndarray
    """[number of pairs], int64: these lengths."""

    @classmethod
    def of(cls, sequences: np.ndarray) -> Partners:
        """Returns the partners of these pairs."""
        lengths = sequences[:, 3] - sequences[:, 2]
        order = np.argsort(lengths, kind="stable")
        return cls(order, lengths[order])

    def draw(
        self, sequences: np.ndarray, index: int, epoch: int, rng: np.random.Generator
    ) -> tuple[int, int, int]:
        """Returns the second segment of a pair in an epoch.

        Args:
            sequences: [number of pairs, 5].
            index: of the pair.
            epoch: pairs that belong together in one epoch do not in the next one.
            rng: draws the partner.

        Returns:
            Its start, its stop, which is no further away than in `sequences`, and the label.
        """
        _, _, start, stop, document = sequences[index].tolist()
        if (index + epoch) % 2 == IS_NEXT:
            return start, stop, IS_NEXT
        low, high = self._candidates(stop - start)
        for _ in range(_MAX_DRAWS):
            number = int(self.by_length[rng.integers(low, high)])
            if not 0 <= number < len(sequences):
                raise damaged(None, f"there is no sequence {number} to take for another")
            other = sequences[number].tolist()
            if other[4] != document:
                return other[2], min(other[3], other[2] + stop - start), IS_RANDOM
        return start, stop, IS_NEXT  # there is hardly any other document

    def _candidates(self, length: int) -> tuple[int, int]:
        """Returns the range of those as long as `length`; if too few, of shorter ones as well."""
        low, high = np.searchsorted(self.sorted_lengths, (length, length + 1)).tolist()
        low = max(0, min(low, high - _MIN_PARTNERS))
        return low, max(high, min(_MIN_PARTNERS, len(self.sorted_lengths)))
