"""Batches of many samples, each computed from its place, are those that a plan would have."""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from lightning_gaudi.data import BucketBatchSampler, sampler
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


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_in_evaluation_the_batches_are_those_of_a_plan(
    num_ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = _ranks(num_ranks, shuffle=False)
    monkeypatch.setattr(sampler, "PLANNED_SAMPLES", 100)
    computed = _ranks(num_ranks, shuffle=False)
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


@pytest.mark.parametrize("size", [1, 2, 3, 10, 97, 1000, 4097])
def test_a_permutation_has_each_number_once(size: int) -> None:
    keys = np.random.default_rng(size).integers(2**64, size=4, dtype=np.uint64)
    assert sorted(Shuffled(size, keys)(np.arange(size)).tolist()) == list(range(size))


def test_each_number_comes_anywhere_equally_often() -> None:
    rng = np.random.default_rng(0)
    counts = np.zeros((11, 11))
    for _ in range(2000):
        keys = rng.integers(2**64, size=4, dtype=np.uint64)
        counts[np.arange(11), Shuffled(11, keys)(np.arange(11))] += 1
    assert abs(counts / (2000 / 11) - 1).max() < 0.35  # 4.8 standard deviations


@pytest.mark.parametrize("num_samples", [128, 1000, 12_800, 30_011])
def test_samples_of_a_bucket_are_found(num_samples: int) -> None:
    bucket_of = np.random.default_rng(1).integers(0, 3, num_samples).astype(np.int8)
    index = BucketIndex(bucket_of, 4)
    assert index.counts.tolist() == np.bincount(bucket_of, minlength=4).tolist()
    for bucket in range(3):
        places = np.flatnonzero(bucket_of == bucket)
        numbers = np.arange(len(places))
        assert (index.find(np.full(len(places), bucket), numbers) == places).all()


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
