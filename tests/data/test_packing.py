import itertools

import numpy as np
import pytest
import torch

from lightning_gaudi.data import (
    PackDataset,
    block_diagonal_mask,
    fitting_capacity,
    pack,
    pack_batch,
    pack_together,
)


def _lengths(count: int, capacity: int) -> list[int]:
    generator = torch.Generator().manual_seed(0)
    skewed = torch.rand(count, generator=generator) ** 3
    return (skewed * (capacity - 1)).long().add(1).tolist()


@pytest.mark.parametrize("max_sequences", [None, 1, 3])
def test_every_sequence_is_packed_once_within_the_limits(max_sequences):
    lengths = _lengths(2000, 128)
    packs = list(pack(lengths, 128, max_sequences=max_sequences, window=100))
    assert sorted(itertools.chain.from_iterable(packs)) == list(range(2000))
    assert all(sum(lengths[i] for i in chosen) <= 128 for chosen in packs)
    assert max(map(len, packs)) <= (max_sequences or 2000)


def test_packs_fill_more_than_97_percent():
    lengths = _lengths(5000, 128)
    packs = list(pack(lengths, 128))
    assert sum(lengths) / (128 * len(packs)) > 0.97


@pytest.mark.parametrize("max_sequences", [3, 8])
def test_few_sequences_a_pack_fill_it_nearly_as_far_as_they_can(max_sequences):
    lengths = _lengths(5000, 512)
    packs = list(pack(lengths, 512, max_sequences=max_sequences))
    fewest = max(sum(lengths) / 512, len(lengths) / max_sequences)
    assert len(packs) < 1.12 * fewest


def test_same_lengths_give_the_same_packs():
    lengths = _lengths(500, 64)
    assert list(pack(lengths, 64)) == list(pack(iter(lengths), 64))


def test_an_endless_stream_is_packed_with_a_bounded_window():
    consumed = itertools.count()
    stream = (next(consumed) % 60 + 1 for _ in itertools.count())
    first = list(itertools.islice(pack(stream, 64, window=50), 20))
    num_taken = sum(map(len, first))
    assert next(consumed) <= num_taken + 50


def test_of_equal_lengths_the_oldest_goes_first():
    assert list(pack([4, 4, 4, 4], 8)) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("length", [0, 129])
def test_a_sequence_that_cannot_be_packed_is_named(length):
    with pytest.raises(ValueError, match=f"Sequence 1 has {length} tokens, .* holds 1 to 128"):
        list(pack([5, length], 128))


@pytest.mark.parametrize("setting", ["capacity", "max_sequences", "window"])
def test_settings_below_one_are_refused(setting):
    settings = {"capacity": 8, "max_sequences": 2, "window": 4} | {setting: 0}
    with pytest.raises(ValueError, match=f"{setting} must be at least 1, but is 0"):
        list(pack([1], **settings))


def test_mask_allows_attention_only_within_a_sequence():
    ids = torch.tensor([[1, 1, 2, 0]])
    allowed = block_diagonal_mask(ids)[0, 0] == 0
    expected = [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    torch.testing.assert_close(allowed, torch.tensor(expected, dtype=torch.bool))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_masked_attention_is_exactly_zero_and_finite(dtype):
    mask = block_diagonal_mask(torch.tensor([[1, 2, 2, 0]]), dtype)
    assert mask.dtype == dtype
    assert mask.shape == (1, 1, 4, 4)
    assert mask.isfinite().all()
    assert mask.to(torch.bfloat16).isfinite().all() or dtype == torch.float16
    weights = torch.softmax(mask.float(), dim=-1)
    assert weights[0, 0, 0].tolist() == [1, 0, 0, 0]
    assert weights[0, 0, 3].tolist() == [0, 0, 0, 1]


def test_a_decoder_attends_to_the_article_of_its_summary_alone():
    mask = block_diagonal_mask(torch.tensor([[1, 2, 0]]), key_ids=torch.tensor([[1, 1, 2, 0]]))
    expected = [[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    torch.testing.assert_close(mask[0, 0] == 0, torch.tensor(expected, dtype=torch.bool))


def _pairs(count):
    rng = np.random.default_rng(0)
    return np.stack([rng.integers(1, 129, count), rng.integers(1, 33, count)], axis=1)


@pytest.mark.parametrize("max_samples", [None, 1, 3])
def test_samples_of_two_sequences_are_packed_once_within_both_limits(max_samples):
    lengths = _pairs(1000)
    sizes = (256, 64)
    packs = list(pack_together(lengths.tolist(), sizes, max_samples=max_samples, window=100))
    assert sorted(itertools.chain.from_iterable(packs)) == list(range(1000))
    assert all((lengths[chosen].sum(0) <= sizes).all() for chosen in packs)
    assert max(map(len, packs)) <= (max_samples or 1000)
    assert packs == list(
        pack_together(iter(lengths.tolist()), sizes, max_samples=max_samples, window=100)
    )


def test_samples_of_one_sequence_are_packed_as_pack_does():
    lengths = _lengths(2000, 128)
    alone = list(pack_together([[each] for each in lengths], (128,), window=500))
    assert alone == list(pack(lengths, 128, window=500))


def test_both_rows_fill_up_alike():
    lengths = _pairs(4000)
    packs = list(pack_together(lengths.tolist(), (512, 128)))
    assert lengths.sum() / (640 * len(packs)) > 0.97


def test_the_second_capacity_leaves_least_padding():
    lengths = _pairs(1500)
    lengths[:, 1] = np.maximum(lengths[:, 1] // 2, 1)

    def num_places(capacity):
        packs = pack_together(lengths.tolist(), (512, capacity))
        return sum(1 for _ in packs) * (512 + capacity)

    found = fitting_capacity(lengths, 512)
    assert found % 8 == 0
    assert num_places(found) == min(map(num_places, range(16, 137, 8)))
    with pytest.raises(ValueError, match="no samples to choose a capacity for"):
        fitting_capacity(lengths[:0], 512)


@pytest.mark.parametrize("lengths", [[5], [5, 0], [5, 9], [17, 1]])
def test_a_sample_that_cannot_be_packed_is_named(lengths):
    with pytest.raises(ValueError, match=rf"Sample 1 has sequences of \{lengths}"[:-1]):
        list(pack_together([[5, 1], lengths], (16, 8)))


@pytest.mark.parametrize("setting", ["capacities", "max_samples", "window"])
def test_settings_of_several_sequences_below_one_are_refused(setting):
    settings = {"capacities": (8, 8), "max_samples": 2, "window": 4}
    settings[setting] = (8, 0) if setting == "capacities" else 0
    with pytest.raises(ValueError, match=f"{setting} must be at least 1, but is 0"):
        list(pack_together([[1, 1]], **settings))


SAMPLES = [
    {"input_ids": [5, 6, 7], "labels": [8, 1], "score": 0.5},
    {"input_ids": [9], "labels": [1], "score": 1.5},
    {"input_ids": [4, 4], "labels": [3, 2, 1], "score": 2.5},
]


def test_a_row_has_its_samples_one_after_another():
    dataset = PackDataset(SAMPLES, [[0, 1], [2]])
    assert (len(dataset), dataset.samples_per_pack) == (2, 1.5)
    batch = pack_batch(
        [dataset[0], dataset[1]],
        5,
        pad_values={"labels": -100, "score": -1},
        lengths={"labels": 4},
        max_samples=2,
    )
    expected = {
        "input_ids": [[5, 6, 7, 9, 0], [4, 4, 0, 0, 0]],
        "labels": [[8, 1, 1, -100], [3, 2, 1, -100]],
        "score": [[0.5, 1.5], [2.5, -1]],
        "sequence_ids": [[1, 1, 1, 2, 0], [1, 1, 0, 0, 0]],
        "position_ids": [[0, 1, 2, 0, 0], [0, 1, 0, 0, 0]],
        "labels_sequence_ids": [[1, 1, 2, 0], [1, 1, 1, 0]],
        "labels_position_ids": [[0, 1, 0, 0], [0, 1, 2, 0]],
        "first_positions": [[0, 3], [0, 0]],
    }
    assert {name: value.tolist() for name, value in batch.items()} == expected
    assert batch["sequence_ids"].dtype == torch.int64


def test_a_pack_asks_for_its_samples_in_an_epoch():
    class Named:
        def __getitem__(self, key):
            return key

    assert PackDataset(Named(), [[3], [2, 0]])[7, 1] == [(7, 2), (7, 0)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 3}, "4 tokens"),
        ({"max_samples": 1}, "has 2 samples, but a row holds max_samples=1"),
        ({"max_samples": None}, "score is a number of each sample"),
        ({"lengths": None}, "input_ids and labels of a sample share a row"),
    ],
)
def test_what_does_not_fit_a_row_is_refused(settings, message):
    given = {"length": 5, "lengths": {"labels": 4}, "max_samples": 2} | settings
    with pytest.raises(ValueError, match=message):
        pack_batch([SAMPLES[:2]], **given)
