"""Batches of many samples, each computed from its place, are those that a plan would have."""

from __future__ import annotations

import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from itertools import chain, islice

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from benchmarks.growth_rows import ordinary
from lightning_gaudi.data import (
    BucketBatchSampler,
    BucketDataLoader,
    evaluation_loader,
    large_order,
    sampler,
)
from lightning_gaudi.data.large_order import BucketIndex, Shuffled
from lightning_gaudi.data.position_iterators import passed_over

BOUNDARIES = [16, 64, 128]
LENGTHS = (np.random.default_rng(0).random(1037) ** 2 * 128).astype(int) + 1


def _ranks(num_ranks: int, *, epoch: int = 0, **settings) -> list[list]:
    found = []
    for rank in range(num_ranks):
        each = BucketBatchSampler(
            LENGTHS, BOUNDARIES, 4, num_ranks=num_ranks, rank=rank, **settings
        )
        each.set_epoch(epoch)
        found.append(list(each))
    return found


@pytest.fixture
def is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "PLANNED_SAMPLES", 100)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_in_evaluation_the_batches_are_those_of_a_plan(
    num_ranks: int, drop_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"shuffle": False, "drop_last": drop_last, "multiple_of": 5}
    planned = _ranks(num_ranks, **settings)
    monkeypatch.setattr(sampler, "PLANNED_SAMPLES", 100)
    computed = _ranks(num_ranks, **settings)
    assert computed == planned
    assert [[vars(b) for b in r] for r in computed] == [[vars(b) for b in r] for r in planned]


@pytest.mark.usefixtures("is_large")
def test_in_training_each_sample_comes_at_most_once_in_its_bucket() -> None:
    ranks = _ranks(3, shuffle=True, multiple_of=2)
    assert len({len(batches) for batches in ranks}) == 1
    assert len(ranks[0]) == 1037 // 24 * 2
    for step in zip(*ranks, strict=True):
        assert len({(batch.length, batch.size, batch.filler) for batch in step}) == 1
        assert all(LENGTHS[batch].max() <= batch.length for batch in step)
    counts = Counter(index for batches in ranks for batch in batches for index in batch)
    assert set(counts.values()) == {1}
    assert len(counts) == len(ranks[0]) * 12
    padded = sum(batch.length * 4 for batches in ranks for batch in batches)
    least = sum(BOUNDARIES[np.searchsorted(BOUNDARIES, LENGTHS[index])] for index in counts)
    assert padded < 1.03 * least  # only the batches between two buckets pad further


@pytest.mark.usefixtures("is_large")
def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    first, second, other = (
        _ranks(1, shuffle=True, **settings)[0] for settings in ({}, {"epoch": 1}, {"seed": 1})
    )
    assert _ranks(1, shuffle=True)[0] == first
    for each in (second, other):
        same = sum(a == b for a, b in zip(first, each, strict=True))
        assert same < 3
        assert {*chain(*first)} != {*chain(*each)}  # others are left out


@pytest.mark.usefixtures("is_large")
@pytest.mark.parametrize("position", [0, 1, 100, 258, 259])
def test_a_run_goes_on_where_it_stood(position: int) -> None:
    whole = BucketBatchSampler(LENGTHS, BOUNDARIES, 4, shuffle=True)
    taken = list(islice(whole, position))
    resumed = BucketBatchSampler(LENGTHS, BOUNDARIES, 4, shuffle=True)
    state = whole.state_dict()
    resumed.load_state_dict(state)
    assert [*taken, *resumed] == _ranks(1, shuffle=True)[0]


def test_a_plan_is_not_gone_on_with_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = BucketBatchSampler(LENGTHS, BOUNDARIES, 4, shuffle=True)
    next(iter(planned))
    monkeypatch.setattr(sampler, "PLANNED_SAMPLES", 100)
    computed = BucketBatchSampler(LENGTHS, BOUNDARIES, 4, shuffle=True)
    with pytest.raises(ValueError, match="how batches are drawn was None and is each by itself"):
        computed.load_state_dict(planned.state_dict())


def _shuffled(size: int, epoch: int = 0) -> Shuffled:
    return Shuffled(size, large_order.random_keys(3, epoch))


@pytest.mark.parametrize("size", [1, 2, 3, 10, 97, 512, 513, 1000, 4097])
def test_a_permutation_has_each_number_once(size: int) -> None:
    found = _shuffled(size)(np.arange(size)).tolist()
    assert sorted(found) == list(range(size))
    assert [_shuffled(size).one(place) for place in range(size)] == found


@pytest.mark.parametrize(("size", "num_cells"), [(11, 11), (600, 12)])
def test_each_number_comes_anywhere_equally_often(size: int, num_cells: int) -> None:
    counts, num_following, num_epochs = np.zeros((num_cells, num_cells)), 0, 2000
    cells = np.arange(size) * num_cells // size
    for epoch in range(num_epochs):
        found = _shuffled(size, epoch)(np.arange(size))
        np.add.at(counts, (cells, cells[found]), 1)
        num_following += int((np.diff(found) == 1).sum())
    assert abs(counts / counts.mean() - 1).max() < 0.35  # of 11 numbers: 4.8 standard deviations
    # How often a number comes right behind the one before it: once, all but 1 / size.
    assert abs(num_following / num_epochs - (1 - 1 / size)) < 0.1  # 4.5 standard deviations


def test_the_order_is_the_same_with_each_numpy() -> None:
    # Another order would have runs that go on repeat some samples, and leave others out.
    assert [_shuffled(10**9).one(place) for place in range(3)] == [603711380, 191418092, 308967897]
    assert _shuffled(5)(np.arange(5)).tolist() == [3, 2, 1, 4, 0]


def test_each_sample_is_left_out_equally_often() -> None:
    counts, num_left_out = [5, 0, 3, 12, 1], 8
    left_in = [large_order._left_in(counts, num_left_out, drawn) for drawn in range(sum(counts))]
    assert {sum(each) for each in left_in} == {sum(counts) - num_left_out}
    assert all(0 <= n <= count for each in left_in for n, count in zip(each, counts, strict=True))
    out = np.subtract(counts, left_in).sum(axis=0)  # in all epochs that may be drawn
    assert out.tolist() == [count * num_left_out for count in counts]


class _Work:
    """What a call takes, whatever the machine: Python's calls, and the most bytes it holds."""

    def __init__(self, do: Callable[[], object]) -> None:
        do()  # what is made once
        self.num_calls = 0
        sys.setprofile(self._note)
        try:
            do()
        finally:
            sys.setprofile(None)
        tracemalloc.start()
        try:
            do()
            self.num_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    def _note(self, frame: object, event: str, argument: object) -> None:
        self.num_calls += event in ("call", "c_call")


def _resuming_in_order(num_samples: int) -> Callable[[], object]:
    return ordinary(num_samples, shuffle=False)


def _resuming_in_training(num_samples: int) -> Callable[[], object]:
    lengths = np.resize(LENGTHS.astype(np.uint8), num_samples)
    batches = BucketBatchSampler(lengths, BOUNDARIES, 32, shuffle=True, num_ranks=8, rank=3)
    return _resuming(BucketDataLoader(range(num_samples), batches, lambda samples, _: samples))


def _resuming_in_evaluation(num_samples: int) -> Callable[[], object]:
    return _resuming(evaluation_loader(range(num_samples), 32, num_ranks=8, rank=3))


def _resuming(loader: BucketDataLoader) -> Callable[[], object]:
    saved = loader.state_dict() | {"position": len(loader) // 2}

    def resume() -> object:
        loader.load_state_dict(saved)
        return next(iter(loader))

    return resume


@pytest.mark.parametrize(
    "make", [_resuming_in_order, _resuming_in_training, _resuming_in_evaluation]
)
def test_the_first_batch_after_resuming_takes_no_more_work_of_more_samples(
    make: Callable[[int], Callable[[], object]],
) -> None:
    few, many = (_Work(make(num_samples)) for num_samples in (10**5, 10**7))
    assert many.num_calls < 1.1 * few.num_calls
    assert many.num_bytes < 1.1 * few.num_bytes


@pytest.mark.parametrize("num_samples", [128, 1000, 12_800, 30_011])
def test_samples_of_a_bucket_are_found(num_samples: int) -> None:
    bucket_of = np.random.default_rng(1).integers(0, 3, num_samples).astype(np.int8)
    index = BucketIndex(bucket_of, 4)
    assert index.counts.tolist() == np.bincount(bucket_of, minlength=4).tolist()
    for bucket in range(3):
        places = np.flatnonzero(bucket_of == bucket)
        numbers = np.arange(len(places))
        assert (index.find(bucket, numbers) == places).all()


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("num_passed", [0, 1, 5, 6, 7, 9])
@pytest.mark.parametrize("kind", ["in order", "at random", "of the user's", "no batches"])
def test_what_was_taken_is_passed_over(kind: str, num_passed: int, drop_last: bool) -> None:
    class Reversed(SequentialSampler):
        def __iter__(self):
            return iter(range(len(self.data_source) - 1, -1, -1))

    def make():
        generator = torch.Generator().manual_seed(3)
        data = range(26)
        own = {
            "in order": SequentialSampler(data),
            "at random": RandomSampler(data, generator=generator),
            "of the user's": Reversed(data),
            "no batches": SequentialSampler(data),
        }[kind]
        return own if kind == "no batches" else BatchSampler(own, 4, drop_last)

    indices = make()
    assert list(passed_over(indices, iter(indices), num_passed)) == list(make())[num_passed:]
