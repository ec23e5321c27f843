import itertools

import numpy as np
import pytest
import torch

from lightning_gaudi.data import BucketBatchSampler, optimal_buckets


def _num_padded(lengths, boundaries) -> int:
    limits = np.asarray(boundaries)
    return int(limits[np.searchsorted(limits, lengths)].sum())


@pytest.mark.parametrize("multiple_of", [1, 3, 8])
@pytest.mark.parametrize("num_buckets", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_no_choice_of_boundaries_pads_less(num_buckets, multiple_of, seed):
    lengths = np.random.default_rng(seed).integers(1, 30, size=25)
    found = optimal_buckets(lengths, num_buckets, multiple_of=multiple_of)
    last = -(-int(lengths.max()) // multiple_of) * multiple_of
    below = range(multiple_of, last, multiple_of)
    every = (
        [*chosen, last]
        for count in range(num_buckets)
        for chosen in itertools.combinations(below, count)
    )
    assert _num_padded(lengths, found) == min(_num_padded(lengths, some) for some in every)


def test_boundaries_ascend_in_multiples_and_hold_the_longest():
    lengths = np.random.default_rng(0).integers(1, 510, size=10_000)
    boundaries = optimal_buckets(lengths, 8)
    assert len(boundaries) == 8
    assert boundaries == sorted(set(boundaries))
    assert all(boundary % 8 == 0 for boundary in boundaries)
    assert boundaries[-1] == 512
    assert all(type(boundary) is int for boundary in boundaries)


def test_no_more_buckets_than_help():
    assert optimal_buckets([8, 8, 16, 16], 5) == [8, 16]
    assert optimal_buckets([5], 4) == [8]


@pytest.mark.parametrize(("max_length", "expected"), [(128, [24, 128]), (20, [16, 20])])
def test_max_length_is_the_last_boundary(max_length, expected):
    assert optimal_buckets([16, 15, 14, 18], 2, max_length=max_length) == expected


@pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor])
def test_lengths_may_be_of_any_kind(make):
    assert optimal_buckets(make([3, 5, 16]), 2) == [8, 16]


def test_a_sample_longer_than_the_limit_is_refused():
    message = "A sample has 600 tokens but the largest bucket holds 512. Truncate in the tokenizer"
    with pytest.raises(ValueError, match=message):
        optimal_buckets([4, 600], 4, max_length=512)


@pytest.mark.parametrize("setting", ["num_buckets", "multiple_of"])
def test_settings_below_one_are_refused(setting):
    settings = {"num_buckets": 2, "multiple_of": 8} | {setting: 0}
    with pytest.raises(ValueError, match=f"{setting} must be at least 1, but is 0"):
        optimal_buckets([1], **settings)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([], r"their shape is \(0,\).*check what was loaded"),
        ([[1, 2]], r"one number for each sample, but their shape is \(1, 2\)"),
        ([1.5], "must be integers, but are float64"),
        ([3, 0, 2], r"sample 1 has 0 token\(s\). Drop empty samples"),
    ],
)
def test_lengths_that_are_none_are_refused(lengths, message):
    with pytest.raises(ValueError, match=message):
        optimal_buckets(lengths, 2)
    with pytest.raises(ValueError, match=message):
        BucketBatchSampler(lengths, [8], 1, shuffle=True)
