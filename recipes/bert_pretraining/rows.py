"""Which sequences share a row: planned once, kept in files that are mapped into memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from lightning_gaudi.data import pack
from recipes.bert_pretraining.sequences import Partners, sequence_lengths
from recipes.bert_pretraining.tokenized import ArrayWriter, check_starts, damaged, open_array


@dataclass(frozen=True)
class RowShape:
    """The fixed sizes of one row."""

    max_seq_length: int
    max_predictions_per_seq: int
    max_sequences_per_pack: int
    mlm_probability: float = 0.15

    def num_predictions(self, num_tokens: int) -> int:
        """Returns how many of the tokens of a row, special ones not counted, are predicted."""
        wanted = max(1, round(self.mlm_probability * num_tokens))
        return min(self.max_predictions_per_seq, wanted)


@dataclass(frozen=True)
class RowPlan:
    """The sequences of a split, and how they are packed."""

    sequences: np.ndarray
    """[number of sequences, 5], int64: see `sequences.py`."""
    packed: np.ndarray
    """[number of sequences], int64: indices of sequences, row after row."""
    row_starts: np.ndarray
    """[number of rows + 1], int64: where each row begins in `packed`, and where the last ends."""
    partners: Partners | None = None
    """For next-sentence prediction."""
    source: tuple[Path, str] | None = None
    """Folder and split that the arrays are mapped from; None if they are in memory."""

    @classmethod
    def of(cls, sequences: np.ndarray, packs: Sequence[Sequence[int]]) -> RowPlan:
        """Returns a plan from packs that are there."""
        packed = np.fromiter(chain.from_iterable(packs), np.int64)
        row_starts = np.cumsum([0, *map(len, packs)])
        has_pairs = bool((sequences[:, 3] > sequences[:, 2]).any())
        return cls(sequences, packed, row_starts, Partners.of(sequences) if has_pairs else None)

    @classmethod
    def open(cls, folder: Path, split: str) -> RowPlan:
        """Maps what `write_plan` wrote.

        Raises:
            UserError: The arrays are no indices, or do not belong together.
        """
        sequences, packed, row_starts, by_length, lengths = (
            open_array(folder, f"{split}_{name}", ("int64",)) for name in _ARRAYS
        )
        check_starts(row_starts, len(packed), folder, f"{split}_row_starts")
        num_sequences, rest = divmod(len(sequences), 5)
        if rest or {len(by_length), len(lengths)} not in ({0}, {num_sequences}):
            raise damaged(folder, f"the arrays of {split} have lengths that do not belong together")
        partners = Partners(by_length, lengths) if len(by_length) else None
        return cls(sequences.reshape(-1, 5), packed, row_starts, partners, (folder, split))

    def __reduce__(self) -> tuple[Any, ...]:
        """A worker process maps the files again, where pickling would copy all of them."""
        if self.source is not None:
            return RowPlan.open, self.source
        return RowPlan, (self.sequences, self.packed, self.row_starts, self.partners)

    def __len__(self) -> int:
        return len(self.row_starts) - 1

    def __getitem__(self, row: int) -> list[int]:
        """Returns the indices of the sequences of a row."""
        start, stop = self.row_starts[row : row + 2].tolist()
        found = self.packed[start:stop].tolist()
        is_inside = 0 <= start <= stop <= len(self.packed)
        if not is_inside or not all(0 <= each < len(self.sequences) for each in found):
            raise damaged(self._folder, f"row {row} names sequences that are not there")
        return found

    @property
    def _folder(self) -> Path | None:
        return self.source[0] if self.source is not None else None

    def text_ranges(self) -> Iterator[tuple[int, int]]:
        """Starts and stops of the segments of all sequences, in the corpus's tokens."""
        return ((start, stop) for row in self.sequences for start, stop in (row[0:2], row[2:4]))

    def expected_targets(self, shape: RowShape) -> tuple[float, float]:
        """Predictions and sequences of a row, on average over rows from all along the plan."""
        if not len(self):
            return 1.0, 1.0
        rows = np.unique(np.linspace(0, len(self) - 1, _NUM_SAMPLED_ROWS).astype(np.int64))
        starts, counts = self.row_starts[rows], self.row_starts[rows + 1] - self.row_starts[rows]
        before = np.cumsum(counts) - counts
        if starts.min() < 0 or counts.min() < 1 or (starts + counts).max() > len(self.packed):
            raise damaged(self._folder, "rows begin where there is nothing")
        places = np.arange(counts.sum()) + np.repeat(starts - before, counts)
        packed = self.packed[places]
        if packed.min() < 0 or packed.max() >= len(self.sequences):
            raise damaged(self._folder, "rows name sequences that are not there")
        chosen = self.sequences[packed]
        num_tokens = chosen[:, 1] - chosen[:, 0] + chosen[:, 3] - chosen[:, 2]
        per_row = np.add.reduceat(num_tokens, before).tolist()
        predictions = [shape.num_predictions(number) for number in per_row]
        return sum(predictions) / len(rows), int(counts.sum()) / len(rows)


_NUM_SAMPLED_ROWS = 4096
_ARRAYS = ("sequences", "packed", "row_starts", "by_length", "sorted_lengths")


def write_plan(
    sequences: np.ndarray, shape: RowShape, next_sentence: bool, folder: Path, split: str
) -> None:
    """Packs sequences into rows and writes the plan into files of `folder`.

    Args:
        sequences: [number of sequences, 5].
        shape: sizes of a row.
        next_sentence: whether they are pairs.
        folder: where.
        split: what the names of the files begin with.
    """
    with (
        ArrayWriter(folder, f"{split}_packed", np.int64) as packed,
        ArrayWriter(folder, f"{split}_row_starts", np.int64) as row_starts,
    ):
        stop = 0
        row_starts.append([stop])
        lengths, limit = map(int, sequence_lengths(sequences)), shape.max_sequences_per_pack
        for row in pack(lengths, shape.max_seq_length, max_sequences=limit):
            stop += len(row)
            packed.append(row)
            row_starts.append([stop])
    partners = Partners.of(sequences if next_sentence else sequences[:0])
    rest = (sequences.reshape(-1), partners.by_length, partners.sorted_lengths)
    for name, values in zip(("sequences", "by_length", "sorted_lengths"), rest, strict=True):
        with ArrayWriter(folder, f"{split}_{name}", np.int64) as writer:
            writer.append(values)
