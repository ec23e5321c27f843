"""From documents to training sequences: ranges of the corpus, not copies of it.

A sequence is a row of five numbers, (first_start, first_stop, second_start, second_stop, label):
`[CLS] first [SEP]`, or with next-sentence prediction `[CLS] first [SEP] second [SEP]`, where the
label is 0 if `second` follows `first` in its document and 1 if it was drawn from another one.
"""

from __future__ import annotations

import numpy as np

from recipes.bert_pretraining.tokenized import TokenizedCorpus

MIN_TOKENS = 4
"""Shorter remainders of a document are dropped: there is nothing to learn from them."""

IS_NEXT, IS_RANDOM, NO_LABEL = 0, 1, -100


def num_special_tokens(next_sentence: bool) -> int:
    """[CLS] and one [SEP] for each segment."""
    return 3 if next_sentence else 2


def sequence_lengths(sequences: np.ndarray) -> np.ndarray:
    """[number of sequences]: the tokens of each, with its special tokens."""
    first = sequences[:, 1] - sequences[:, 0]
    second = sequences[:, 3] - sequences[:, 2]
    return first + second + 2 + (second > 0)


def single_sequences(corpus: TokenizedCorpus, max_seq_length: int) -> np.ndarray:
    """Cut each document into pieces that fill a row, and one shorter remainder.

    Args:
        corpus: the tokenized documents.
        max_seq_length: tokens of a sequence, special tokens included.

    Returns:
        [number of sequences, 5], int64.
    """
    room = max_seq_length - num_special_tokens(next_sentence=False)
    rows = []
    for document in range(corpus.num_documents):
        starts = corpus.sentences_of(document)
        for start in range(int(starts[0]), int(starts[-1]), room):
            stop = min(start + room, int(starts[-1]))
            if stop - start >= MIN_TOKENS:
                rows.append((start, stop, 0, 0, NO_LABEL))
    return np.array(rows, np.int64).reshape(-1, 5)


def sentence_pairs(
    corpus: TokenizedCorpus, max_seq_length: int, rng: np.random.Generator
) -> np.ndarray:
    """Pairs of segments for next-sentence prediction, as many that follow as that do not.

    As in BERT's own data preparation a chunk of consecutive sentences is cut at a random place;
    the second part is kept, or exchanged for text of another document. The labels alternate, so
    they are balanced to within one; a chunk of one sentence can only make a random pair, and is
    left out where a random pair is not due.

    Args:
        corpus: the tokenized documents.
        max_seq_length: tokens of a pair, special tokens included.
        rng: draws places, documents and truncations.

    Returns:
        [number of pairs, 5], int64.
    """
    room = max_seq_length - num_special_tokens(next_sentence=True)
    rows: list[tuple[int, ...]] = []
    label = IS_NEXT
    for document in range(corpus.num_documents):
        starts = corpus.sentences_of(document)
        index, last = 0, len(starts) - 1
        while index < last:
            stop = int(np.searchsorted(starts, starts[index] + room, side="right")) - 1
            stop = min(max(stop, index + 1), last)
            if stop - index == 1 and label == IS_NEXT:
                index = stop
                continue
            cut = int(rng.integers(index + 1, stop)) if stop - index > 1 else stop
            first = (int(starts[index]), int(starts[cut]))
            if label == IS_NEXT:
                second = (int(starts[cut]), int(starts[stop]))
            else:
                second = _text_of_another(corpus, document, room - (first[1] - first[0]), rng)
                stop = cut  # what was not used comes again
            first, second = _truncate(first, second, room, rng)
            if min(first[1] - first[0], second[1] - second[0]) > 0:
                rows.append((*first, *second, label))
                label = IS_RANDOM if label == IS_NEXT else IS_NEXT
            index = stop
    return np.array(rows, np.int64).reshape(-1, 5)


def _text_of_another(
    corpus: TokenizedCorpus, document: int, room: int, rng: np.random.Generator
) -> tuple[int, int]:
    """A range that starts at a random sentence of a document other than `document`."""
    if corpus.num_documents < 2:
        return 0, 0
    other = (document + int(rng.integers(1, corpus.num_documents))) % corpus.num_documents
    starts = corpus.sentences_of(other)
    if len(starts) < 2:
        return 0, 0
    begin = int(starts[rng.integers(len(starts) - 1)])
    return begin, min(int(starts[-1]), begin + max(room, MIN_TOKENS))


def _truncate(
    first: tuple[int, int], second: tuple[int, int], room: int, rng: np.random.Generator
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Shorten the longer segment until both fit, at its beginning or end."""
    size_first, size_second = first[1] - first[0], second[1] - second[0]
    if size_first + size_second <= room:
        return first, second
    keep_first = max(room - size_second, min(size_first, room // 2))
    keep_second = min(size_second, room - keep_first)
    return _shorten(first, keep_first, rng), _shorten(second, keep_second, rng)


def _shorten(segment: tuple[int, int], keep: int, rng: np.random.Generator) -> tuple[int, int]:
    drop = segment[1] - segment[0] - keep
    front = int(rng.integers(drop + 1))
    return segment[0] + front, segment[1] - (drop - front)
