"""Makes a data set of packs: rows of fixed length, masked anew in every epoch, reproducibly.

Shapes: T tokens in a row (max_seq_length), P predictions (max_predictions_per_seq), K sequences
in a row (max_sequences_per_pack). All are fixed, so a device compiles one graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import Dataset

from recipes.bert_pretraining.rows import RowPlan, RowShape
from recipes.bert_pretraining.sequences import NO_LABEL
from recipes.bert_pretraining.stream import StreamPlan
from recipes.bert_pretraining.tokenized import TokenizedCorpus, damaged

_Sequence: TypeAlias = "tuple[np.ndarray, np.ndarray, int]"
"""Tokens of the first segment, tokens of the second (none without pairs), label."""

_PARTNERS = 1  # draws of partners have a stream of their own, so masks do not depend on them
_SHARE_MASKED, _SHARE_RANDOM = 0.8, 0.1  # of the predicted tokens; the rest is left as it is


@dataclass(frozen=True)
class Vocabulary:
    """Holds the token ids that masking needs."""

    size: int
    pad: int
    cls: int
    sep: int
    mask: int
    special: tuple[int, ...]


class PackedDataset(Dataset[dict[str, Any]]):
    """Holds rows of packed sequences with masked-language-model targets.

    An item is asked for by (epoch, index): the pair alone decides what is masked and which
    segments are exchanged, whichever worker computes it and wherever a run was resumed. An index
    alone means epoch 0, for evaluation is the same whenever it comes. Index -1 is an empty row.

    Args:
        corpus: the text.
        plan: its sequences, and which of them share a row; or a stream that rows are cut from.
        vocabulary: token ids.
        shape: sizes of a row.
        seed: of masking, and of the partners for next-sentence prediction.
    """

    def __init__(
        self,
        corpus: TokenizedCorpus,
        plan: RowPlan | StreamPlan,
        vocabulary: Vocabulary,
        shape: RowShape,
        seed: int,
    ) -> None:
        self.corpus, self.plan = corpus, plan
        self.vocabulary, self.shape, self.seed = vocabulary, shape, seed
        self._expected_targets = plan.expected_targets(shape)
        self._random_tokens = np.setdiff1d(np.arange(vocabulary.size), vocabulary.special)

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, key: tuple[int, int] | int) -> dict[str, Any]:
        """Returns one row.

        Returns:
            input_ids, token_type_ids, position_ids, sequence_ids [T]; masked_positions and
            masked_labels [P]; cls_positions and next_sentence_labels [K], all int64 with labels
            -100 where there is nothing to predict; and numbers that stay on the host: num_tokens,
            num_sequences, and expected_predictions and expected_pairs, what a row has on average.
        """
        epoch, index = key if isinstance(key, tuple) else (0, key)
        row = self._read(epoch, index)
        # On a card the result of an index beyond the embeddings is undefined.
        if (largest := int(row["input_ids"].max())) >= self.vocabulary.size:
            raise damaged(
                self.corpus.folder,
                f"a token is {largest}, but the vocabulary has {self.vocabulary.size}",
            )
        rng = np.random.default_rng((self.seed, epoch, index + 1))
        self._mask(row, rng)
        row["expected_predictions"], row["expected_pairs"] = self._expected_targets
        return row

    def _read(self, epoch: int, index: int) -> dict[str, Any]:
        """Returns a row before it is masked."""
        if index < 0:
            return self._assemble([])
        if isinstance(self.plan, RowPlan):
            return self._assemble(self._sequences(self.plan, epoch, index))
        # The row is one sequence, which fills it and has its special tokens already.
        row, vocabulary = self._assemble([]), self.vocabulary
        row["input_ids"][:] = self.plan.tokens(index, vocabulary.cls, vocabulary.sep)
        row["position_ids"][:] = np.arange(len(row["position_ids"]))
        row["sequence_ids"][:] = 1
        return {**row, "num_tokens": len(row["input_ids"]), "num_sequences": 1}

    def _sequences(self, plan: RowPlan, epoch: int, index: int) -> Iterator[_Sequence]:
        """Yields the sequences of a row in an epoch."""
        partners, sequences = plan.partners, plan.sequences
        rng = np.random.default_rng((self.seed, epoch, index + 1, _PARTNERS))
        for number in plan[index]:
            first_start, first_stop, start, stop, _ = sequences[number].tolist()
            label = NO_LABEL
            if partners is not None:
                start, stop, label = partners.draw(sequences, number, epoch, rng)
            text = self.corpus.text
            yield text(first_start, first_stop), text(start, stop), label

    def _assemble(self, sequences: Iterable[_Sequence]) -> dict[str, Any]:
        num_slots, vocabulary = self.shape.max_seq_length, self.vocabulary
        names = ("token_type_ids", "position_ids", "sequence_ids")
        row: dict[str, Any] = {name: np.zeros(num_slots, np.int64) for name in names}
        row["input_ids"] = np.full(num_slots, vocabulary.pad, np.int64)
        row["cls_positions"] = np.zeros(self.shape.max_sequences_per_pack, np.int64)
        row["next_sentence_labels"] = np.full_like(row["cls_positions"], NO_LABEL)
        at = num_sequences = 0
        for number, (first, second, label) in enumerate(sequences):
            parts = [[vocabulary.cls], first, [vocabulary.sep]]
            if len(second):
                parts += [second, [vocabulary.sep]]
            ids = np.concatenate(parts)
            end = at + len(ids)
            if end > num_slots or number >= len(row["cls_positions"]):
                raise damaged(self.corpus.folder, f"a row has more than {num_slots} tokens")
            row["input_ids"][at:end] = ids
            row["token_type_ids"][at + len(first) + 2 : end] = 1
            row["position_ids"][at:end] = np.arange(len(ids))
            row["sequence_ids"][at:end] = number + 1
            row["cls_positions"][number] = at
            row["next_sentence_labels"][number] = label
            at, num_sequences = end, number + 1
        row["num_tokens"], row["num_sequences"] = at, num_sequences
        return row

    def _mask(self, row: dict[str, Any], rng: np.random.Generator) -> None:
        """Chooses at most P tokens to predict and hides them, in place."""
        limit, ids = self.shape.max_predictions_per_seq, row["input_ids"]
        candidates = np.flatnonzero(~np.isin(ids, self.vocabulary.special))
        wanted = self.shape.num_predictions(len(candidates))
        chosen = np.sort(rng.permutation(candidates)[:wanted])
        row["masked_positions"] = np.zeros(limit, np.int64)
        row["masked_labels"] = np.full(limit, NO_LABEL, np.int64)
        row["masked_positions"][: len(chosen)] = chosen
        row["masked_labels"][: len(chosen)] = ids[chosen]
        draw = rng.random(len(chosen))
        ids[chosen[draw < _SHARE_MASKED]] = self.vocabulary.mask
        replaced = chosen[(draw >= _SHARE_MASKED) & (draw < _SHARE_MASKED + _SHARE_RANDOM)]
        ids[replaced] = rng.choice(self._random_tokens, len(replaced))


def collate(rows: Sequence[dict[str, Any]], length: int | None = None) -> dict[str, Any]:
    """Stacks rows to tensors [B, ...], and adds the counts up on the host, never on the device.

    Args:
        rows: items of a `PackedDataset`.
        length: what loaders with buckets say; the rows have one length already.
    """
    batch: dict[str, Any] = {}
    for name, value in rows[0].items():
        if isinstance(value, np.ndarray):
            batch[name] = torch.from_numpy(np.stack([row[name] for row in rows]))
        else:
            batch[name] = sum(row[name] for row in rows)
    return batch
