"""Computes the token efficiency, and the shapes to compile, of `lightning_gaudi.data` on real text.

Nothing is trained, and no device is needed. The text is the documentation of Python and torch, so
the figures differ a little between versions of them, and not between runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np

from benchmarks.harness.interleaved import Effort
from benchmarks.harness.rows import Row
from lightning_gaudi.data import BucketBatchSampler, embedded_documents, optimal_buckets, pack
from recipes.bert_pretraining.data import BertData
from recipes.common.tokenization import train_wordpiece

VOCAB_SIZE = 8192
BATCH_SIZE = 32


@dataclass(frozen=True)
class Lengths:
    """The lengths of a task's samples."""

    title: str
    tokens: np.ndarray
    """The number of tokens of each sample, none above `limit`."""
    limit: int


Efficiency = tuple[float, int]
"""The share of tokens that are no padding, and the number of different shapes."""


def tasks() -> Iterator[Lengths]:
    """Yields pairs of sentences, BERT's rows, and texts without their first sentence."""
    documents = embedded_documents(["torch"])
    tokenizer = train_wordpiece(documents, VOCAB_SIZE)
    sentences = list(chain.from_iterable(documents))
    encoded = tokenizer(sentences, add_special_tokens=False, verbose=False)["input_ids"]
    counts, starts = list(map(len, encoded)), np.cumsum([0, *map(len, documents)])
    parts = [counts[i:j] for i, j in pairwise(starts)]
    pairs = [first + second + 3 for p in parts for first, second in _by_two(p)]
    yield Lengths("pairs to 128", np.minimum(pairs, 128), 128)
    yield Lengths("NSP 512", _next_sentence_lengths(512), 512)
    summaries = [sum(part[1:]) + 4 for part in parts if len(part) > 1]
    yield Lengths("summaries 512", np.minimum(summaries, 512), 512)


def _by_two(part: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(part[::2], part[1::2], strict=False)


def _next_sentence_lengths(limit: int) -> np.ndarray:
    data = BertData(
        vocab_size=VOCAB_SIZE,
        max_seq_length=limit,
        max_predictions_per_seq=80,
        max_sequences_per_pack=1,
        next_sentence=True,
    )
    data.prepare_data()
    data.setup("fit")
    lengths = [(batch["sequence_ids"] > 0).sum(1) for batch in data.train_dataloader()]
    return np.concatenate(lengths)


def efficiencies(lengths: Lengths) -> dict[str, Efficiency]:
    """Returns the efficiency of each way to make batches."""
    tokens, limit = lengths.tokens, lengths.limit
    found = {
        "pad to max": (tokens.mean() / limit, 1),
        "dynamic padding (Hugging Face default)": _dynamic(tokens),
    }
    for num_buckets in (4, 8):
        found[f"{num_buckets} optimal buckets"] = _bucketed(tokens, num_buckets, limit)
    for at_most in (3, 8, None):
        num_packs = sum(1 for _ in pack(tokens.tolist(), limit, max_sequences=at_most))
        name = f"packing, at most {at_most} a pack" if at_most else "packing, any number a pack"
        found[name] = (tokens.sum() / (num_packs * limit), 1)
    return found


def _dynamic(tokens: np.ndarray) -> Efficiency:
    order = np.random.default_rng(0).permutation(len(tokens))
    batches = tokens[order[: len(order) // BATCH_SIZE * BATCH_SIZE]].reshape(-1, BATCH_SIZE)
    longest = batches.max(axis=1)
    return batches.sum() / (longest.sum() * BATCH_SIZE), len(np.unique(longest))


def _bucketed(tokens: np.ndarray, num_buckets: int, limit: int) -> Efficiency:
    boundaries = optimal_buckets(tokens, num_buckets, max_length=limit)
    batches = list(BucketBatchSampler(tokens, boundaries, BATCH_SIZE, shuffle=True))
    kept = tokens[list(chain.from_iterable(batches))]
    places = sum(batch.size * batch.length for batch in batches)
    return kept.sum() / places, len({batch.length for batch in batches})


def measure(effort: Effort) -> list[Row]:
    """Computes all ways for all tasks; an effort makes no difference to counts."""
    return [
        Row(
            f"{lengths.title}: {name}",
            100 * share,
            "% real tokens",
            detail="1 shape" if num_shapes == 1 else f"{num_shapes} shapes",
        )
        for lengths in tasks()
        for name, (share, num_shapes) in efficiencies(lengths).items()
    ]
