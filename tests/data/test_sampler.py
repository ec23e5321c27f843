import itertools
import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from lightning_gaudi.data import BucketBatchSampler

BOUNDARIES = [16, 64, 128]


def _lengths(num_samples: int = 1000) -> np.ndarray:
    return (np.random.default_rng(0).random(num_samples) ** 2 * 128).astype(int) + 1


def _sampler(lengths=None, batch_size=4, shuffle=True, **settings) -> BucketBatchSampler:
    lengths = _lengths() if lengths is None else lengths
    return BucketBatchSampler(lengths, BOUNDARIES, batch_size, shuffle=shuffle, **settings)


def _ranks(num_ranks: int, **settings) -> list[list]:
    """The batches of every rank."""
    return [list(_sampler(num_ranks=num_ranks, rank=rank, **settings)) for rank in range(num_ranks)]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_all_ranks_step_through_the_same_buckets(num_ranks, shuffle):
    lengths = _lengths()
    by_rank = _ranks(num_ranks, shuffle=shuffle)
    for step in zip(*by_rank, strict=True):  # equally many batches
        assert len({batch.length for batch in step}) == 1
        assert step[0].length in BOUNDARIES
        assert {batch.size for batch in step} == {4}
        for batch in step:
            assert all(lengths[index] <= batch.length for index in [*batch, batch.filler])
    assert {batch.length for batch in by_rank[0]} == set(BOUNDARIES)


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_in_training_only_what_fills_no_batch_is_left_out(num_ranks):
    seen = [index for batch in itertools.chain(*_ranks(num_ranks)) for index in batch]
    assert len(seen) == len(set(seen)) == 1000 - 1000 % (4 * num_ranks)


@pytest.mark.parametrize("num_ranks", [1, 3, 8])
def test_in_evaluation_each_sample_comes_once(num_ranks):
    by_rank = _ranks(num_ranks, shuffle=False)
    seen = [index for batch in itertools.chain(*by_rank) for index in batch]
    assert sorted(seen) == list(range(1000))
    full, last = [b for batches in by_rank for b in batches[:-1]], [b[-1] for b in by_rank]
    assert all(len(batch) == batch.size for batch in full)
    assert max(map(len, last)) - min(map(len, last)) <= 1  # what is left is shared evenly


def test_a_sample_of_a_rare_bucket_has_its_turn():
    # One of 65 samples is left out, and the only long one must not always be it.
    sampler = _sampler([10] * 64 + [128], batch_size=4)
    num_seen = 0
    for epoch in range(40):
        sampler.set_epoch(epoch)
        num_seen += 64 in itertools.chain(*sampler)
    assert num_seen > 35


def test_samples_pad_no_further_than_their_bucket_but_in_the_batches_between_two():
    lengths = _lengths()
    above = [
        batch
        for batch in _sampler(shuffle=False)
        if batch.length > min(b for b in BOUNDARIES if b >= lengths[list(batch)].min())
    ]
    assert len(above) <= len(BOUNDARIES) - 1


def test_epochs_have_other_orders_which_the_seed_decides():
    def orders(seed):
        sampler = _sampler(seed=seed)
        for epoch in (0, 1):
            sampler.set_epoch(epoch)
            yield [list(batch) for batch in sampler]

    (first, second), again = orders(5), orders(5)
    assert first != second
    assert [first, second] == list(again)
    assert first != next(orders(6))


def test_buckets_are_mixed_over_the_epoch():
    lengths = [batch.length for batch in _sampler()]
    halves = Counter(lengths[: len(lengths) // 2]), Counter(lengths[len(lengths) // 2 :])
    for boundary in BOUNDARIES:
        assert halves[0][boundary] > 0.3 * (halves[0] + halves[1])[boundary]


def test_evaluation_is_the_same_in_every_epoch():
    sampler = _sampler(shuffle=False)
    first = list(sampler)
    sampler.set_epoch(3)
    assert list(sampler) == first


def test_length_is_the_number_of_batches():
    for shuffle, num_ranks, drop_last in itertools.product((True, False), (1, 3), (True, False)):
        sampler = _sampler(shuffle=shuffle, num_ranks=num_ranks, rank=0, drop_last=drop_last)
        assert len(sampler) == len(list(sampler))


def test_a_batch_keeps_its_shape_on_the_way_to_a_worker():
    batch = next(iter(_sampler(shuffle=False)))
    copied = pickle.loads(pickle.dumps(batch))
    assert (copied, copied.__dict__) == (batch, batch.__dict__)


def test_torchs_own_loader_resumes_within_an_epoch():
    lengths = _lengths()

    def loader():
        return DataLoader(lengths, batch_sampler=_sampler(lengths, seed=2))

    whole = loader()
    whole.batch_sampler.set_epoch(4)
    expected = list(whole)
    begun = loader()
    begun.batch_sampler.set_epoch(4)
    taken = list(itertools.islice(begun, 7))
    resumed = loader()
    resumed.batch_sampler.load_state_dict(begun.batch_sampler.state_dict())
    resumed.batch_sampler.set_epoch(4)
    torch.testing.assert_close([*taken, *resumed], expected)
    assert len(list(resumed)) == len(expected)  # and the next iteration is a whole one


def test_a_state_of_other_batches_is_refused():
    sampler = _sampler()
    list(itertools.islice(sampler, 5))
    other = _sampler(batch_size=8, num_ranks=2, rank=0)
    with pytest.raises(
        ValueError,
        match=r"after batch 5 of epoch 0, .*batch_size was 4 and is 8; num_ranks was 1 and is 2",
    ):
        other.load_state_dict(sampler.state_dict())


def test_samples_in_another_order_are_other_batches():
    sampler = _sampler()
    list(itertools.islice(sampler, 5))
    with pytest.raises(ValueError, match="checksum of their buckets was"):
        _sampler(_lengths()[::-1]).load_state_dict(sampler.state_dict())


def test_between_epochs_the_batches_may_change():
    sampler = _sampler()
    sampler.set_epoch(2)
    list(sampler)
    other = _sampler(batch_size=8)
    other.load_state_dict(sampler.state_dict())
    other.set_epoch(3)
    expected = _sampler(batch_size=8)
    expected.set_epoch(3)
    assert list(other) == list(expected)


def test_states_can_be_saved_safely(tmp_path):
    sampler = _sampler()
    torch.save(sampler.state_dict(), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == sampler.state_dict()


def test_too_few_samples_for_a_batch_on_each_rank_are_refused():
    message = r"7 sample\(s\), but a step takes 8 \(batches of 4 on 2 rank\(s\)\)\. Use more data"
    with pytest.raises(ValueError, match=message):
        _sampler([5] * 7, num_ranks=2, rank=0)


def test_fewer_samples_than_ranks_can_be_evaluated():
    by_rank = _ranks(4, lengths=[5, 100, 9], shuffle=False, batch_size=2)
    assert [[list(batch) for batch in batches] for batches in by_rank] == [
        [[1]],
        [[0]],
        [[2]],
        [[]],
    ]
    assert {batch.length for (batch,) in by_rank} == {128}


@pytest.mark.parametrize("boundaries", [[], [8, 8], [64, 16], [0, 8]])
def test_boundaries_that_do_not_ascend_are_refused(boundaries):
    with pytest.raises(ValueError, match=r"boundaries must ascend and be at least 1, but are \["):
        BucketBatchSampler([1, 2], boundaries, 1, shuffle=True)


def test_a_sample_longer_than_the_largest_bucket_is_refused():
    with pytest.raises(ValueError, match="has 129 tokens but the largest bucket holds 128"):
        _sampler([5, 129])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, but is 0"),
        ({"num_ranks": 2}, "num_ranks and rank go together, but are 2 and None"),
        ({"num_ranks": 2, "rank": 2}, "rank must be 0 to 1 .*but is 2"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        _sampler(**settings)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_an_epoch_of_training_is_a_multiple_of_accumulated_batches(num_ranks):
    lengths = [1 + index % 9 for index in range(101)]
    settings = {"shuffle": True, "num_ranks": num_ranks, "rank": 0, "multiple_of": 4}
    sampler = BucketBatchSampler(lengths, [4, 9], 3, **settings)
    assert len(sampler) == len(list(sampler)) == 101 // (3 * num_ranks * 4) * 4
    # In evaluation nothing is left out for it.
    evaluation = BucketBatchSampler(lengths, [4, 9], 3, **(settings | {"shuffle": False}))
    assert len(evaluation) == -(-101 // (3 * num_ranks))
