"""Keeps rows as token ids in two flat arrays, so that a large data set needs no further memory.

Shapes: S source tokens, T target tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from recipes.common.tokenization import use_all_cores
from recipes.t5_summarization.corpora import Row

_CHUNK_ROWS = 4096


@dataclass
class TokenSequences:
    """Holds many sequences of token ids in one array."""

    tokens: np.ndarray
    """[number of tokens], integer."""
    starts: np.ndarray
    """[number of sequences + 1]: where each begins in `tokens`, and where the last ends."""
    num_cut: int = 0
    """How many were too long, and lost their end."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        return self.tokens[self.starts[index] : self.starts[index + 1]].astype(np.int64)

    @property
    def lengths(self) -> np.ndarray:
        """Returns the number of tokens of each, [number of sequences]."""
        return np.diff(self.starts)


@dataclass
class TokenizedRows(Dataset[dict[str, Any]]):
    """Holds articles and summaries by index, each ending in `</s>`."""

    sources: TokenSequences
    targets: TokenSequences
    num_empty: int = 0
    """Rows that were left out, because the article or the summary is empty."""
    rows: list[Row] = field(default_factory=list)
    """The text, if it is kept to score summaries and to write them."""

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.sources[index], "labels": self.targets[index], "index": index}

    def select(self, indices: Sequence[int]) -> TokenizedRows:
        """Returns some of the rows, as a data set of its own; the text must have been kept."""
        parts = (_pack([part[i] for i in indices]) for part in (self.sources, self.targets))
        return TokenizedRows(*parts, rows=[self.rows[i] for i in indices])


def tokenize(
    rows: Iterable[Row],
    tokenizer: PreTrainedTokenizerBase,
    *,
    prefix: str,
    max_source_length: int,
    max_target_length: int,
    keep_text: bool = False,
) -> TokenizedRows:
    """Tokenizes on all cores, in chunks that bound the memory.

    Args:
        rows: in order; those without an article or a summary are left out and counted.
        tokenizer: with an end-of-sequence token.
        prefix: put before each article.
        max_source_length: tokens of an article (S), its end token included; a longer one is cut.
        max_target_length: tokens of a summary (T), likewise.
        keep_text: keep the rows too.
    """
    use_all_cores()
    sources, targets = [_pack([])], [_pack([])]
    kept: list[Row] = []
    num_empty, remaining = 0, iter(rows)
    while chunk := list(islice(remaining, _CHUNK_ROWS)):
        full = [row for row in chunk if row.article and row.highlights]
        num_empty += len(chunk) - len(full)
        texts = [prefix + row.article for row in full]
        sources.append(_encode(texts, tokenizer, max_source_length))
        targets.append(_encode([row.highlights for row in full], tokenizer, max_target_length))
        kept += full if keep_text else []
    return TokenizedRows(_join(sources), _join(targets), num_empty, kept)


def _encode(
    texts: list[str], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> TokenSequences:
    if not texts:
        return _pack([])
    encoded = tokenizer(
        texts,
        add_special_tokens=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )["input_ids"]
    limit, end = max_length - 1, tokenizer.eos_token_id
    result = _pack([[*ids[:limit], end] for ids in encoded])
    result.num_cut = sum(len(ids) > limit for ids in encoded)
    return result


def _pack(sequences: Sequence[Sequence[int]]) -> TokenSequences:
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    tokens = np.fromiter(chain.from_iterable(sequences), np.int32, lengths.sum())
    return TokenSequences(tokens, np.concatenate([[0], np.cumsum(lengths)]))


def _join(parts: Sequence[TokenSequences]) -> TokenSequences:
    lengths = np.concatenate([part.lengths for part in parts])
    tokens = np.concatenate([part.tokens for part in parts])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return TokenSequences(tokens, starts, sum(part.num_cut for part in parts))
