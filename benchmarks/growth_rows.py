"""The first batch after resuming with 10^3 to 10^9 rows, plans of an epoch, and the token cache.

A data set here computes its rows, so that nothing but positions and orders is measured. No
benchmark of torch's random sampler has 10^9 rows: it makes a list of as many numbers.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.harness.curves import curve
from benchmarks.harness.interleaved import Effort
from benchmarks.harness.rows import RATIO, Row, seconds
from lightning_gaudi.data import (
    BucketBatchSampler,
    BucketDataLoader,
    evaluation_loader,
    optimal_buckets,
    pack,
)
from lightning_gaudi.data.position import LoaderPosition
from recipes.bert_pretraining.corpora import Corpus
from recipes.bert_pretraining.prepared import Settings, prepare
from recipes.bert_pretraining.rows import RowShape
from recipes.common.tokenization import train_wordpiece

SIZES = (10**3, 10**6, 10**9)
RANDOM_SIZES = (10**3, 10**5, 10**7)
PLAN_SIZES = (10**3, 10**4, 10**5)
BATCH_SIZE, NUM_TOKENS = 32, 128
ROUNDS = 201
MOST, LINEAR, FLAT = 1.5, 1.15, 0.1


class Computed(Dataset[dict[str, torch.Tensor]]):
    """Rows of tokens, as many as one likes."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.full((_length(index),), index % 1000)}


_LENGTHS = np.random.default_rng(0).integers(1, NUM_TOKENS, 1000, endpoint=True, dtype=np.uint8)


def _length(index: int) -> int:
    return int(_LENGTHS[index % 1000])


class Rows(Computed):
    """Rows of one length."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.full((NUM_TOKENS,), index % 1000)}


def ordinary(num_rows: int, *, shuffle: bool) -> Callable[[], object]:
    """A DataLoader of torch's, in the middle of its epoch; ours goes on there."""
    loader = DataLoader(Rows(num_rows), BATCH_SIZE, shuffle=shuffle)
    position = LoaderPosition(loader)
    begun = position.make_iterator()
    next(begun)
    saved = position.state_dict() | {"taken": len(loader) // 2}

    def resume() -> object:
        assert position.loader is loader  # which it does not keep
        position.load_state_dict(saved, within_epoch=True)
        return next(position.make_iterator())

    return resume


def by_torch(num_rows: int) -> Callable[[], object]:
    """The first batch of an epoch of torch's random sampler, which goes on nowhere."""
    loader = DataLoader(Rows(num_rows), BATCH_SIZE, shuffle=True)
    return lambda: next(iter(loader))


def bucketed(num_rows: int) -> Callable[[], object]:
    """Ours in training, on one rank of eight."""
    sampler = BucketBatchSampler(
        np.tile(_LENGTHS, num_rows // 1000),
        [16, 64, 128],
        BATCH_SIZE,
        shuffle=True,
        num_ranks=8,
        rank=3,
    )
    loader = BucketDataLoader(Computed(num_rows), sampler)
    return _resuming(loader)


def evaluated(num_rows: int) -> Callable[[], object]:
    """Ours in evaluation."""
    return _resuming(evaluation_loader(Rows(num_rows), BATCH_SIZE, num_ranks=8, rank=3))


def _resuming(loader: BucketDataLoader) -> Callable[[], object]:
    saved = loader.state_dict() | {"position": len(loader) // 2}

    def resume() -> object:
        loader.load_state_dict(saved)
        return next(iter(loader))

    return resume


def in_turns(
    make: Callable[[int], Callable[[], object]], sizes: tuple[int, ...], rounds: int
) -> dict[int, list[float]]:
    """Seconds of each call at each size, one after the other in each round."""
    calls = {size: make(size) for size in sizes}
    found: dict[int, list[float]] = {size: [] for size in sizes}
    for index in range(rounds + 1):
        for size, call in calls.items():
            begin = perf_counter()
            call()
            if index:  # the first is to warm up
                found[size].append(perf_counter() - begin)
    return found


def _first_batch(name: str, make: Any, effort: Effort) -> list[Row]:
    found = in_turns(make, SIZES, effort.rounds(ROUNDS))
    least, most = SIZES[0], SIZES[-1]
    ratios = [a / b for a, b in zip(found[most], found[least], strict=True)]
    times = {size: median(each) for size, each in found.items()}
    return [
        Row(
            f"{name}: first batch after resuming, 10^9 rows against 10^3",
            median(ratios),
            RATIO,
            limit=MOST,
            num_rounds=len(ratios),
            detail=f"{seconds(times[most])} against {seconds(times[least])}",
        ),
        curve(f"{name}: first batch after resuming", times),
    ]


def _once(make: Callable[[int], Callable[[], object]], sizes: tuple[int, ...]) -> dict[int, float]:
    return {size: min(times) for size, times in in_turns(make, sizes, 2).items()}


def _packing(num_rows: int) -> Callable[[], object]:
    lengths = np.tile(_LENGTHS, num_rows // 1000).tolist()
    return lambda: sum(1 for _ in pack(lengths, 512))


def _boundaries(num_rows: int) -> Callable[[], object]:
    lengths = np.tile(_LENGTHS, num_rows // 1000)
    return lambda: optimal_buckets(lengths, 8)


def _index(num_rows: int) -> Callable[[], object]:
    lengths = np.tile(_LENGTHS, num_rows // 1000)
    return lambda: BucketBatchSampler(lengths, [16, 64, 128], BATCH_SIZE, shuffle=True)


_WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "klmnrst"]


def _documents(num_documents: int) -> Iterator[list[str]]:
    """Four sentences each, of random words."""
    rng = np.random.default_rng(0)
    for _ in range(num_documents):
        words = rng.integers(len(_WORDS), size=(4, 10)).tolist()
        yield [" ".join(_WORDS[word] for word in sentence) for sentence in words]


def token_cache(effort: Effort) -> list[Row]:
    """Tokens and rows of BERT's recipe: written once, and opened by each later run."""
    tokenizer = train_wordpiece(list(_documents(1000)), 1000)
    settings = Settings(len(tokenizer), RowShape(NUM_TOKENS, 20, 8), True, 0.05, 0)
    making, size, held, opening = {}, {}, {}, {}
    for num in PLAN_SIZES:
        corpus = Corpus("random", num, lambda num=num: _documents(num))  # type: ignore[misc]

        def ask(root: str, corpus: Corpus = corpus) -> object:
            prepared = prepare(corpus, tokenizer, settings, Path(root))
            return prepared.plans["train"][0], prepared.corpus.tokens[-1]

        with TemporaryDirectory() as root:
            making[num] = _cpu_s(lambda: ask(root))
            size[num] = sum(path.stat().st_size for path in Path(root).rglob("*"))
            opening[num] = min(_cpu_s(lambda: ask(root)) for _ in range(effort.rounds(51)))
        with TemporaryDirectory() as root:
            tracemalloc.start()
            ask(root)
            held[num] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    return [
        curve("token cache: CPU time of making it", making, limit=LINEAR),
        curve("token cache: its bytes", size, "B", LINEAR),
        curve("token cache: memory of Python and numpy while it is made", held, "B", LINEAR),
        curve("token cache: CPU time of opening it", opening, limit=FLAT),
    ]


def _cpu_s(do: Callable[[], object]) -> float:
    """Seconds of all threads: what a disk takes grows with bytes, which are told by themselves."""
    begin = process_time()
    do()
    return process_time() - begin


def measure(effort: Effort) -> list[Row]:
    """Resume with few and with many rows, in turns; plan more and more of them."""
    found = in_turns(lambda n: ordinary(n, shuffle=True), RANDOM_SIZES, effort.rounds(3))
    torchs = in_turns(by_torch, RANDOM_SIZES, effort.rounds(3))
    ours = {size: median(times) for size, times in found.items()}
    theirs = {size: median(times) for size, times in torchs.items()}
    most = RANDOM_SIZES[-1]
    return [
        *_first_batch("DataLoader in order", lambda n: ordinary(n, shuffle=False), effort),
        *_first_batch("BucketDataLoader, training", bucketed, effort),
        *_first_batch("evaluation_loader", evaluated, effort),
        Row(
            "DataLoader at random: first batch after resuming within 10^7 rows, against torch's "
            "first batch of an epoch",
            ours[most] / theirs[most],
            RATIO,
            detail=f"{seconds(ours[most])} against {seconds(theirs[most])}",
        ),
        curve("DataLoader at random: first batch after resuming", ours, limit=LINEAR),
        curve("torch's random sampler: first batch of an epoch", theirs),
        curve("packing plan", _once(_packing, PLAN_SIZES), limit=LINEAR),
        curve("bucket boundaries", _once(_boundaries, (10**4, 10**5, 10**6)), limit=LINEAR),
        curve("bucket sampler", _once(_index, (10**5, 10**6, 10**7)), limit=LINEAR),
        *token_cache(effort),
    ]
