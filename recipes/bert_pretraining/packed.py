"""Packs as a data set: rows of fixed length, masked anew in every epoch, reproducibly.

Shapes: T tokens in a row (max_seq_length), P predictions (max_predictions_per_seq), K sequences
in a row (max_sequences_per_pack). All are fixed, so a device compiles one graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, DistributedSampler

from recipes.bert_pretraining.sequences import NO_LABEL

_SHARE_MASKED, _SHARE_RANDOM = 0.8, 0.1  # of the predicted tokens; the rest is left as it is


@dataclass(frozen=True)
class Vocabulary:
    """The token ids that masking needs."""

    size: int
    pad: int
    cls: int
    sep: int
    mask: int
    special: tuple[int, ...]


@dataclass(frozen=True)
class RowShape:
    """The fixed sizes of one row."""

    max_seq_length: int
    max_predictions_per_seq: int
    max_sequences_per_pack: int
    mlm_probability: float = 0.15


class PackedDataset(Dataset[dict[str, Any]]):
    """Rows of packed sequences with masked-language-model targets.

    An item is asked for by (epoch, index): the pair alone decides what is masked, whichever
    worker computes it and wherever a run was resumed. Index -1 is an empty row (see
    `EpochSampler`).

    Args:
        tokens: the corpus.
        sequences: [number of sequences, 5]: see `sequences.py`.
        packs: the indices of the sequences of each row.
        vocabulary: token ids.
        shape: sizes of a row.
        seed: of masking.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        sequences: np.ndarray,
        packs: Sequence[Sequence[int]],
        vocabulary: Vocabulary,
        shape: RowShape,
        seed: int,
    ) -> None:
        self.tokens, self.sequences, self.packs = tokens, sequences, packs
        self.vocabulary, self.shape, self.seed = vocabulary, shape, seed
        self._random_tokens = np.setdiff1d(np.arange(vocabulary.size), vocabulary.special)

    def __len__(self) -> int:
        return len(self.packs)

    def __getitem__(self, key: tuple[int, int]) -> dict[str, Any]:
        """One row.

        Returns:
            input_ids, token_type_ids, position_ids, sequence_ids [T]; masked_positions and
            masked_labels [P]; cls_positions and next_sentence_labels [K], all int64 with labels
            -100 where there is nothing to predict; and the integers num_tokens, num_sequences,
            which stay on the host.
        """
        epoch, index = key
        row = self._assemble([] if index < 0 else self.packs[index])
        rng = np.random.default_rng((self.seed, epoch, index + 1))
        self._mask(row, rng)
        return row

    def _assemble(self, pack: Sequence[int]) -> dict[str, Any]:
        num_slots, vocabulary = self.shape.max_seq_length, self.vocabulary
        names = ("token_type_ids", "position_ids", "sequence_ids")
        row: dict[str, Any] = {name: np.zeros(num_slots, np.int64) for name in names}
        row["input_ids"] = np.full(num_slots, vocabulary.pad, np.int64)
        row["cls_positions"] = np.zeros(self.shape.max_sequences_per_pack, np.int64)
        row["next_sentence_labels"] = np.full(self.shape.max_sequences_per_pack, NO_LABEL, np.int64)
        at = 0
        for number, index in enumerate(pack):
            first_start, first_stop, second_start, second_stop, label = self.sequences[index]
            first = self.tokens[first_start:first_stop]
            second = self.tokens[second_start:second_stop]
            parts = [[vocabulary.cls], first, [vocabulary.sep]]
            if len(second):
                parts += [second, [vocabulary.sep]]
            ids = np.concatenate(parts)
            end = at + len(ids)
            row["input_ids"][at:end] = ids
            row["token_type_ids"][at + len(first) + 2 : end] = 1
            row["position_ids"][at:end] = np.arange(len(ids))
            row["sequence_ids"][at:end] = number + 1
            row["cls_positions"][number] = at
            row["next_sentence_labels"][number] = label
            at = end
        row["num_tokens"], row["num_sequences"] = at, len(pack)
        return row

    def _mask(self, row: dict[str, Any], rng: np.random.Generator) -> None:
        """Choose at most P tokens to predict and hide them, in place."""
        limit, ids = self.shape.max_predictions_per_seq, row["input_ids"]
        candidates = np.flatnonzero(~np.isin(ids, self.vocabulary.special))
        wanted = max(1, round(self.shape.mlm_probability * len(candidates)))
        chosen = np.sort(rng.permutation(candidates)[: min(limit, wanted)])
        row["masked_positions"] = np.zeros(limit, np.int64)
        row["masked_labels"] = np.full(limit, NO_LABEL, np.int64)
        row["masked_positions"][: len(chosen)] = chosen
        row["masked_labels"][: len(chosen)] = ids[chosen]
        draw = rng.random(len(chosen))
        ids[chosen[draw < _SHARE_MASKED]] = self.vocabulary.mask
        replaced = chosen[(draw >= _SHARE_MASKED) & (draw < _SHARE_MASKED + _SHARE_RANDOM)]
        ids[replaced] = rng.choice(self._random_tokens, len(replaced))


def collate(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Stack rows: tensors [B, ...], and the counts as sums on the host, never on the device."""
    batch: dict[str, Any] = {}
    for name, value in rows[0].items():
        if isinstance(value, np.ndarray):
            batch[name] = torch.from_numpy(np.stack([row[name] for row in rows]))
        else:
            batch[name] = sum(row[name] for row in rows)
    return batch


class EpochSampler(DistributedSampler[Any]):
    """(epoch, index) of every item: shuffled in training, in order and padded in evaluation.

    Lightning calls `set_epoch`, and takes it as it is on several ranks: each gets its own items, as
    many as the others. In training the few that do not share out evenly wait for another epoch's
    order; in evaluation all last batches are filled up with empty rows (index -1), so that every
    batch has the same shape and each item is evaluated once.

    Args:
        num_items: size of the data set.
        batch_size: rows of a batch on each rank, to pad to.
        shuffle: training (True) or evaluation (False: every epoch is epoch 0).
        seed: of the order, the same on all ranks.
        num_ranks: processes that share the items.
        rank: this process among them.
    """

    def __init__(
        self,
        num_items: int,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int,
        num_ranks: int = 1,
        rank: int = 0,
    ) -> None:
        super().__init__(
            range(num_items), num_ranks, rank, shuffle=shuffle, seed=seed, drop_last=shuffle
        )
        if not shuffle:
            self.total_size = num_items + -num_items % (batch_size * num_ranks)
            self.num_samples = self.total_size // num_ranks
        else:
            self.num_samples = num_items // num_ranks
            self.total_size = self.num_samples * num_ranks

    def set_epoch(self, epoch: int) -> None:
        """Choose the order and the masks of the coming epoch."""
        super().set_epoch(epoch if self.shuffle else 0)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        order = np.arange(len(self.dataset))
        if self.shuffle:
            order = np.random.default_rng((self.seed, self.epoch)).permutation(order)
        padding = [-1] * (self.total_size - len(order))
        items = [*order.tolist(), *padding][: self.total_size]
        for index in items[self.rank :: self.num_replicas]:
            yield self.epoch, index
