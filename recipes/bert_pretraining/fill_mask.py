"""Finds the likeliest tokens in masked places for `predict`, in held-out text or in a file.

Shapes: B rows, T tokens in a row, P masked places in a row, C candidates for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from recipes.bert_pretraining.rows import RowShape
from recipes.bert_pretraining.sequences import NO_LABEL
from recipes.common.errors import UserError

_CONTEXT_TOKENS = 8


@dataclass  # not frozen: Lightning rebuilds what predict_step returns
class FilledMask:
    """The candidates for one masked place."""

    before: str
    """The last few tokens before it, as text."""
    after: str
    candidates: tuple[tuple[str, float], ...]
    """Tokens and their probabilities, the likeliest first."""
    label: str | None
    """The word that stood there; None if it is not known."""
    row: int
    """The row in its batch."""


class MaskedLines(Dataset[dict[str, Any]]):
    """Makes a row of each line of a text file in which some words are `[MASK]`.

    Args:
        path: UTF-8 text; empty lines are left out.
        tokenizer: with a mask token.
        shape: of a row.

    Raises:
        UserError: for a file without lines, and a line without `[MASK]` or with too many tokens or
            masks.
    """

    def __init__(self, path: str, tokenizer: PreTrainedTokenizerBase, shape: RowShape) -> None:
        self.shape, self.pad, self.rows = shape, tokenizer.pad_token_id, []
        try:
            text = Path(path).expanduser().read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"data.predict_path={path} is not UTF-8 text ({error.reason} at byte "
                f"{error.start}). Convert it: iconv -f latin1 -t utf-8."
            ) from error
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip():
                continue
            ids = np.array(tokenizer(line)["input_ids"])
            places = np.flatnonzero(ids == tokenizer.mask_token_id)
            self._check(f"data.predict_path={path}, line {number}", ids, places, tokenizer)
            self.rows.append((ids, places))
        if not self.rows:
            raise UserError(f"data.predict_path={path} has no line with {tokenizer.mask_token}.")

    def _check(
        self, name: str, ids: np.ndarray, places: np.ndarray, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        limit, most = self.shape.max_seq_length, self.shape.max_predictions_per_seq
        if not len(places):
            raise UserError(f"{name} has no {tokenizer.mask_token}: put it where words are hidden.")
        if len(places) > most or len(ids) > limit:
            raise UserError(
                f"{name} has {len(ids)} tokens and {len(places)} masks, but a row holds "
                f"data.max_seq_length={limit} and data.max_predictions_per_seq={most}. Cut it."
            )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns a row as `PackedDataset` gives it, without labels."""
        ids, places = self.rows[index]
        length, shape = len(ids), self.shape
        row: dict[str, Any] = {
            name: np.zeros(shape.max_seq_length, np.int64)
            for name in ("token_type_ids", "position_ids", "sequence_ids")
        }
        row["input_ids"] = np.full(shape.max_seq_length, self.pad, np.int64)
        row["input_ids"][:length], row["sequence_ids"][:length] = ids, 1
        row["position_ids"][:length] = np.arange(length)
        row["masked_positions"] = np.zeros(shape.max_predictions_per_seq, np.int64)
        row["masked_positions"][: len(places)] = places
        row["masked_labels"] = np.full(shape.max_predictions_per_seq, NO_LABEL, np.int64)
        row["cls_positions"] = np.zeros(shape.max_sequences_per_pack, np.int64)
        row["num_tokens"], row["num_sequences"] = length, 1
        return row


def candidates(
    batch: Mapping[str, Any],
    probabilities: Tensor,
    tokens: Tensor,
    tokenizer: PreTrainedTokenizerBase,
) -> list[FilledMask]:
    """Returns the candidates for each masked place of a batch.

    Args:
        batch: with input_ids, sequence_ids [B, T], masked_positions, masked_labels [B, P], is_real.
        probabilities: [B, P, C], of the candidates.
        tokens: [B, P, C], integer.
        tokenizer: that of the model.
    """
    names = ("input_ids", "sequence_ids", "masked_positions", "masked_labels")
    ids, sequences, places, labels = (batch[name].tolist() for name in names)
    values, best = probabilities.tolist(), tokens.tolist()
    found = []
    for row, is_real in enumerate(batch["is_real"].tolist()):
        if not is_real:
            continue
        for slot, place in enumerate(places[row]):
            if place == 0:  # an empty slot, since place 0 is [CLS], which is never masked
                continue
            inside = [
                t for t, number in enumerate(sequences[row]) if number == sequences[row][place]
            ]
            first, last = inside[0] + 1, inside[-1]  # between [CLS] and the last [SEP]
            before = ids[row][max(first, place - _CONTEXT_TOKENS) : place]
            after = ids[row][place + 1 : min(last, place + 1 + _CONTEXT_TOKENS)]
            label = labels[row][slot]
            words = tokenizer.convert_ids_to_tokens(best[row][slot])
            found.append(
                FilledMask(
                    tokenizer.decode(before),
                    tokenizer.decode(after),
                    tuple(zip(words, values[row][slot], strict=True)),
                    None if label == NO_LABEL else tokenizer.convert_ids_to_tokens(label),
                    row,
                )
            )
    return found


def lines(masks: Sequence[FilledMask]) -> str:
    """Returns a readable line for each mask."""
    return "\n".join(map(line, masks))


def line(mask: FilledMask) -> str:
    """Returns a line with context, candidates, and the word that stood there if it is known."""
    named = ", ".join(f"{token} {probability:.0%}" for token, probability in mask.candidates)
    was = "" if mask.label is None else f"  (was: {mask.label})"
    return f"{mask.before} [____] {mask.after}  ->  {named}{was}"
