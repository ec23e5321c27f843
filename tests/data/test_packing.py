import itertools

import pytest
import torch

from lightning_gaudi.data import block_diagonal_mask, pack


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
