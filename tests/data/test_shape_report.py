import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lightning_gaudi.data import (
    BucketBatchSampler,
    BucketDataLoader,
    describe,
    evaluation_loader,
    optimal_buckets,
)

LENGTHS = np.random.default_rng(0).integers(1, 65, size=200)


class Texts(Dataset):
    """Draws from every generator there is."""

    def __getitem__(self, index):
        random.random(), np.random.rand(), torch.rand(1)
        return {"input_ids": [1] * int(LENGTHS[index]), "id": index}

    def __len__(self):
        return len(LENGTHS)


def _loader(num_buckets=3, shuffle=True, **settings) -> BucketDataLoader:
    boundaries = optimal_buckets(LENGTHS, num_buckets)
    sampler = BucketBatchSampler(LENGTHS, boundaries, 8, shuffle=shuffle)
    return BucketDataLoader(Texts(), sampler, **settings)


def _ids(batches) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def test_shapes_compilations_and_padding_are_those_of_the_batches():
    loader = _loader()
    report, batches = describe(loader), list(loader)
    assert report.num_batches == report.num_batches_total == len(batches) == 25
    shapes = {tuple(batch["input_ids"].shape) for batch in batches}
    assert set(report.shapes["input_ids"]) == shapes
    assert report.num_compilations == len(shapes) == 3
    assert sum(report.shapes["id"].values()) == 25
    num_places = sum(batch["input_ids"].numel() for batch in batches)
    assert report.padding == {"input_ids": pytest.approx(1 - LENGTHS.sum() / num_places)}


def test_rows_that_only_fill_are_padding():
    report = describe(_loader(num_buckets=1, shuffle=False))
    assert report.padding["input_ids"] == pytest.approx(1 - LENGTHS.sum() / (25 * 8 * 64))
    samples = [{"input_ids": torch.ones(4), "attention_mask": torch.ones(4)}] * 5
    assert describe(evaluation_loader(samples, 4)).padding["input_ids"] == pytest.approx(3 / 8)


@pytest.mark.parametrize(
    ("extra", "pad_ids", "expected"),
    [
        ({"attention_mask": torch.tensor([[1, 1, 0, 0]] * 2)}, {}, {"input_ids": 0.5}),
        ({"sequence_ids": torch.tensor([[1, 2, 2, 0]] * 2)}, {}, {"input_ids": 0.25}),
        ({"num_tokens": 2}, {}, {"input_ids": 0.75}),
        ({"num_tokens": torch.tensor([1, 2])}, {}, {"input_ids": 0.625}),
        ({}, {"input_ids": 7}, {"input_ids": 0.5}),
        ({"attention_mask": torch.ones(2, 4)}, {"input_ids": 7}, {"input_ids": 0.5}),
        ({"labels": torch.tensor([3, -100])}, {"labels": -100}, {"labels": 0.5}),
        ({}, {}, {}),
        (
            {"decoder_input_ids": torch.ones(2, 2), "decoder_attention_mask": torch.eye(2)},
            {},
            {"decoder_input_ids": 0.5},
        ),
    ],
)
def test_padding_is_known_by_masks_counts_or_a_number(extra, pad_ids, expected):
    batch = {"input_ids": torch.tensor([[5, 7, 7, 5]] * 2), **extra}
    assert describe([batch, batch], pad_ids=pad_ids).padding == expected


def test_batches_may_be_nested():
    batch = ({"x": torch.ones(2, 3)}, [torch.ones(2), "name"], 4)
    report = describe([batch])
    assert {name: dict(shapes) for name, shapes in report.shapes.items()} == {
        "[0].x": {(2, 3): 1},
        "[1][0]": {(2,): 1},
    }
    assert set(describe([torch.ones(2)]).shapes) == {"batch"}


def test_another_type_is_another_graph():
    batches = [{"x": torch.ones(2)}, {"x": torch.ones(2, dtype=torch.int64)}]
    assert describe(batches).num_compilations == 2


@pytest.mark.parametrize(
    "make",
    [
        _loader,
        lambda: _loader(num_workers=1, persistent_workers=True),
        lambda: DataLoader(Texts(), batch_size=None, shuffle=True),
        lambda: DataLoader(
            Texts(), batch_size=None, shuffle=True, generator=torch.Generator().manual_seed(1)
        ),
    ],
    ids=["buckets", "workers", "torch", "generator"],
)
def test_the_loader_and_all_random_numbers_are_left_as_they_were(make):
    def batches(describes: bool):
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        loader = make()
        iterator = iter(loader)
        found = [next(iterator)["id"] for _ in range(5)]
        if describes:
            describe(loader)
        found += [batch["id"] for batch in iterator]
        found += [batch["id"] for batch in loader]
        return (
            [np.asarray(ids).tolist() for ids in found],
            random.random(),
            np.random.rand(),
            torch.rand(1).item(),
        )

    assert batches(describes=True) == batches(describes=False)


def test_a_loader_that_resumes_is_described_whole_and_goes_on():
    begun = _loader()
    batches = iter(begun)
    taken = _ids(next(batches) for _ in range(9))
    resumed = _loader()
    resumed.load_state_dict(begun.state_dict())
    assert describe(resumed).num_batches == 25
    assert taken + _ids(resumed) == _ids(_loader())


def test_it_stops_where_told_and_says_so():
    report = describe(_loader(), max_batches=4)
    assert (report.num_batches, report.num_batches_total) == (4, 25)
    assert "4 of 25 batches" in str(report)
    assert "The other batches may have further shapes" in str(report)


def test_the_report_reads_like_a_table():
    batch = {
        "input_ids": torch.ones(2, 8),
        "attention_mask": torch.tensor([[1] * 6 + [0] * 2] * 2),
    }
    assert str(describe([batch] * 3)) == (
        "3 of 3 batches have one shape: each graph that takes a batch is compiled once.\n"
        "       3 x input_ids [2, 8], attention_mask [2, 8]\n"
        "   25.0% of input_ids is padding"
    )
    text = str(describe([{"x": torch.ones(size)} for size in range(1, 21)]))
    assert "have 20 shapes: each graph that takes a batch is compiled 20 times." in text
    assert "and 8 more" in text
    assert "Padding is not known: pass pad_ids" in text


class Stream(IterableDataset):
    def __iter__(self):
        return iter([{"x": torch.ones(2)}] * 3)


class UsedUp(Stream):
    def __next__(self):
        raise StopIteration


def test_streams_that_start_anew_are_described():
    report = describe(DataLoader(Stream(), batch_size=None))
    assert (report.num_batches, report.num_batches_total) == (3, None)
    assert str(report).startswith("3 batches have one shape")


@pytest.mark.parametrize(
    ("make", "name"),
    [(lambda: iter([1]), "list_iterator"), (lambda: DataLoader(UsedUp()), "UsedUp")],
)
def test_what_would_be_used_up_is_refused(make, name):
    with pytest.raises(ValueError, match=f"describe would use up this {name}"):
        describe(make())


def test_a_loader_without_batches_is_refused():
    with pytest.raises(ValueError, match="no batch to describe: check its data set"):
        describe([])


def test_an_unknown_name_of_a_tensor_is_refused():
    with pytest.raises(ValueError, match=r"pad_ids names 'labels', but a batch has \['x'\]"):
        describe([{"x": torch.ones(2)}], pad_ids={"labels": -100})
