"""Makes one stream of tokens of a text, and cuts it into blocks of one length.

Shapes: T tokens of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from recipes.common.tokenization import use_all_cores


def to_stream(documents: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """Returns all tokens, int32, with an end-of-sequence token around each document."""
    use_all_cores()
    encoded = tokenizer(
        list(documents), add_special_tokens=False, return_attention_mask=False, verbose=False
    )["input_ids"]
    end = tokenizer.eos_token_id
    tokens = chain([end], chain.from_iterable([*ids, end] for ids in encoded))
    return np.fromiter(tokens, np.int32)


class Blocks(Dataset[dict[str, Any]]):
    """Holds the stream in blocks; each token but the first is predicted once, from its block alone.

    Args:
        stream: [number of tokens].
        block_size: tokens of a block (T); what does not fill the last one is left out.
    """

    def __init__(self, stream: np.ndarray, block_size: int) -> None:
        self.stream, self.block_size = stream, block_size

    def __len__(self) -> int:
        return (len(self.stream) - 1) // self.block_size

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns input_ids and labels, int64 [T]; a label is the token that follows."""
        start = index * self.block_size
        tokens = self.stream[start : start + self.block_size + 1].astype(np.int64)
        return {"input_ids": tokens[:-1], "labels": tokens[1:]}

    @property
    def predicted(self) -> np.ndarray:
        """Returns the part of the stream that is predicted, and the token before it."""
        return self.stream[: len(self) * self.block_size + 1]
