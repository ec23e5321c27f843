"""Documents one after another, cut where a row is full: no padding, and no row of its own for any.

Each document stands between [CLS] and [SEP]; a row has as many of them as fit, its first and its
last usually in part, and every token sees the whole row. What does not fill the last row is left
out.

Source: "Pre-Training BERT with Hugging Face Transformers and Habana Gaudi" (Hugging Face, 2022).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recipes.bert_pretraining.rows import RowShape
from recipes.bert_pretraining.tokenized import ArrayWriter, TokenizedCorpus, damaged, open_array

_NUM_SPECIAL = 2  # of a document
_NUM_SAMPLED_ROWS = 4096
_ARRAYS = ("documents", "stream_starts")


@dataclass(frozen=True)
class StreamPlan:
    """The documents of a split, and where each begins in the stream of tokens."""

    corpus: TokenizedCorpus
    documents: np.ndarray
    """[number of documents], int64: in their order in the corpus."""
    starts: np.ndarray
    """[number of documents + 1], int64: of each one's [CLS], and where the stream ends."""
    max_seq_length: int
    source: tuple[Path, str] | None = None
    """Folder and split that the arrays are mapped from; None if they are in memory."""
    partners: None = None
    """There is no next-sentence prediction in such rows."""

    @classmethod
    def open(
        cls, corpus: TokenizedCorpus, folder: Path, split: str, max_seq_length: int
    ) -> StreamPlan:
        """Maps what `write_stream` wrote.

        Raises:
            UserError: The arrays are no indices, or do not belong together.
        """
        documents, starts = (open_array(folder, f"{split}_{name}", ("int64",)) for name in _ARRAYS)
        if len(starts) != len(documents) + 1 or starts[0] != 0 or starts[-1] < 0:
            raise damaged(folder, f"{split}_stream_starts does not belong to {split}_documents")
        limit = len(corpus.tokens) + _NUM_SPECIAL * len(documents)
        if starts[-1] > limit:
            raise damaged(folder, f"{split}_stream_starts ends at {starts[-1]}, beyond {limit}")
        return cls(corpus, documents, starts, max_seq_length, (folder, split))

    def __reduce__(self) -> tuple[Any, ...]:
        """A worker process maps the files again, where pickling would copy all of them."""
        if self.source is not None:
            return StreamPlan.open, (self.corpus, *self.source, self.max_seq_length)
        return StreamPlan, (self.corpus, self.documents, self.starts, self.max_seq_length)

    def __len__(self) -> int:
        return int(self.starts[-1]) // self.max_seq_length

    def tokens(self, row: int, cls_token: int, sep_token: int) -> np.ndarray:
        """[max_seq_length] token ids of a row, with the special ones."""
        begin = row * self.max_seq_length
        end = begin + self.max_seq_length
        first, last = np.searchsorted(self.starts, (begin, end - 1), side="right") - 1
        parts: list[Any] = []
        for index in range(first, last + 1):
            parts += [[cls_token], self.corpus.text(*self._range(index)), [sep_token]]
        if not parts:
            raise damaged(self._folder, f"no document reaches into row {row}")
        return np.concatenate(parts)[begin - self.starts[first] :][: self.max_seq_length]

    @property
    def _folder(self) -> Path | None:
        return self.source[0] if self.source is not None else None

    def text_ranges(self) -> Iterator[tuple[int, int]]:
        """Starts and stops of the text of each document, in the corpus's tokens."""
        return map(self._range, range(len(self.documents)))

    def _range(self, index: int) -> tuple[int, int]:
        """Returns the range of the document's text, cut to what the stream has of it."""
        corpus, document = self.corpus, int(self.documents[index])
        if not 0 <= document < corpus.num_documents:
            raise damaged(self._folder, f"there is no document {document}")
        sentence = int(corpus.document_starts[document])
        if not 0 <= sentence < len(corpus.sentence_starts):
            raise damaged(corpus.folder, f"document {document} begins with sentence {sentence}")
        start = int(corpus.sentence_starts[sentence])
        return start, start + int(self.starts[index + 1] - self.starts[index]) - _NUM_SPECIAL

    def expected_targets(self, shape: RowShape) -> tuple[float, float]:
        """Predictions and sequences of a row, on average over rows from all along the stream."""
        if not len(self):
            return 1.0, 1.0
        rows = np.unique(np.linspace(0, len(self) - 1, _NUM_SAMPLED_ROWS).astype(np.int64))
        counts = [shape.num_predictions(self._num_text_tokens(row)) for row in rows.tolist()]
        return sum(counts) / len(counts), 1.0

    def _num_text_tokens(self, row: int) -> int:
        return int((self.tokens(row, -1, -1).astype(np.int64) >= 0).sum())


def write_stream(
    corpus: TokenizedCorpus,
    documents: np.ndarray,
    max_document_tokens: int | None,
    folder: Path,
    split: str,
) -> None:
    """Writes the plan into files of `folder`.

    Args:
        corpus: the tokenized documents.
        documents: [number of documents], those to take; they keep their order in the corpus, for
            neighbours often belong together.
        max_document_tokens: where longer documents are cut, special tokens included; None keeps
            them whole.
        folder: where.
        split: what the names of the files begin with.
    """
    documents = np.sort(documents)
    begin = corpus.sentence_starts[corpus.document_starts[documents]]
    end = corpus.sentence_starts[corpus.document_starts[documents + 1]]
    documents, lengths = documents[end > begin], (end - begin)[end > begin] + _NUM_SPECIAL
    if max_document_tokens is not None:
        lengths = np.minimum(lengths, max_document_tokens)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    for name, values in zip(_ARRAYS, (documents, starts), strict=True):
        with ArrayWriter(folder, f"{split}_{name}", np.int64) as writer:
            writer.append(values)
