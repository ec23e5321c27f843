"""Turns pairs into token ids: `[CLS] first [SEP] second [SEP]`, of any length."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from lightning_gaudi.data import pack_batch, pad_batch
from recipes.common.tokenization import use_all_cores
from recipes.mrpc.pairs import Pair

_NO_LABEL = -100


class EncodedPairs(Dataset[dict[str, Any]]):
    """Holds the pairs of a split by index; unpadded.

    Args:
        pairs: sentences and labels.
        tokenizer: that of the model.
        max_length: of a pair in tokens; where it has more, the end of its longer sentence is cut
            until it fits (`longest_first` in transformers).
    """

    def __init__(
        self, pairs: Sequence[Pair], tokenizer: PreTrainedTokenizerBase, max_length: int
    ) -> None:
        use_all_cores()
        encoded = tokenizer(
            [pair.first for pair in pairs],
            [pair.second for pair in pairs],
            truncation="longest_first",
            max_length=max_length,
            return_attention_mask=False,
            return_token_type_ids=True,
        )
        self.lengths = np.fromiter(map(len, encoded["input_ids"]), np.int64, len(pairs))
        """Returns the tokens of each pair with its special tokens, [number of pairs]."""
        self._starts = np.concatenate([[0], self.lengths.cumsum()])
        self._tokens = _flat(encoded["input_ids"])
        self._types = _flat(encoded["token_type_ids"])
        labels = (_NO_LABEL if pair.label is None else pair.label for pair in pairs)
        self._labels = np.fromiter(labels, np.int64, len(pairs))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns input_ids and token_type_ids, int64 [tokens]; labels and index, int64."""
        span = slice(self._starts[index], self._starts[index + 1])
        return {
            "input_ids": self._tokens[span].astype(np.int64),
            "token_type_ids": self._types[span].astype(np.int64),
            "labels": self._labels[index],
            "index": np.int64(index),
        }


def collate(samples: list[dict[str, Any]], length: int, pad_token_id: int) -> dict[str, Any]:
    """Returns tensors [B, length] and [B], and for TokenThroughput `num_tokens` on the host."""
    batch = pad_batch(samples, length, pad_values={"input_ids": pad_token_id})
    return {**batch, "num_tokens": sum(len(sample["input_ids"]) for sample in samples)}


def collate_packs(
    packs: list[list[dict[str, Any]]],
    length: int,
    *,
    pad_token_id: int,
    max_pairs: int,
    mean_pairs: float,
) -> dict[str, Any]:
    """Returns tensors of rows that pairs share, see `pack_batch`, and numbers for the host.

    Args:
        packs: of pairs.
        length: tokens of a row.
        pad_token_id: stands behind the last pair.
        max_pairs: places of a row for labels; those without a pair have -100.
        mean_pairs: of a batch on average, which its sum of losses is divided by.
    """
    batch = pack_batch(
        packs,
        length,
        pad_values={"input_ids": pad_token_id, "labels": _NO_LABEL, "index": -1},
        max_samples=max_pairs,
    )
    num_tokens = sum(len(pair["input_ids"]) for pairs in packs for pair in pairs)
    counts = {"num_tokens": num_tokens, "num_sequences": sum(map(len, packs))}
    return {**batch, **counts, "mean_pairs": mean_pairs}


def _flat(rows: Sequence[Sequence[int]]) -> np.ndarray:
    return np.fromiter(chain.from_iterable(rows), np.int32)
