"""Batches of any size, made from those of a loader."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, islice
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader
from transformers import BatchEncoding

from lightning_gaudi.tools.plan.batches import LOOKED_AT, NUM_STEPS, Repeated, _tensors, size_of


class Pair(NamedTuple):
    """As collate functions return them."""

    ids: torch.Tensor
    lengths: list[int]


@dataclass
class Record:
    """Likewise."""

    ids: torch.Tensor
    name: str = "train"


IDS = torch.arange(12).view(4, 3)


@pytest.mark.parametrize(
    "batch",
    [
        IDS,
        [IDS, torch.ones(4)],
        (IDS, {"labels": torch.ones(4)}),
        {"ids": IDS, "numbers": [0, 1, 2, 3], "scale": torch.tensor(2.0), "table": torch.ones(7)},
        Pair(IDS, [3, 3, 3, 3]),
        Record(IDS),
        BatchEncoding({"ids": IDS}),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_a_batch_has_as_many_samples_as_are_wanted(batch: Any) -> None:
    assert size_of(batch) == 4
    loader = Repeated([batch], 6)
    for found in islice(iter(loader), 3):
        assert type(found) is type(batch)
        ids = next(iter(_tensors(found)))
        assert torch.equal(ids, torch.cat([IDS, IDS[:2]]))


@dataclass(frozen=True)
class Request:
    """What is told of a sample, without tensors."""

    prompt: str


def test_lists_of_anything_have_an_item_for_each_sample() -> None:
    requests = [Request(prompt) for prompt in "abcd"]
    words = [["one", "word"] for _ in range(4)]
    found = next(iter(Repeated([{"ids": IDS, "requests": requests, "words": words}], 6)))
    assert found["requests"] == [Request(prompt) for prompt in "abcdab"]
    assert found["words"] == [["one", "word"]] * 6


@pytest.mark.parametrize(
    "batch",
    [
        list("abcd"),
        [("a", "b", "c", "d"), ("e", "f", "g", "h")],
        {"requests": [Request(prompt) for prompt in "abcd"], "is_real": [True, True, True, False]},
    ],
    ids=["texts", "columns", "records"],
)
def test_a_batch_without_tensors_is_as_large_as_its_lists(batch: Any) -> None:
    assert size_of(batch) == 4
    found = next(iter(Repeated([batch], 6)))
    assert size_of(found) == 6
    assert type(found) is type(batch)


def test_what_is_no_row_stays() -> None:
    batch = {"ids": IDS, "numbers": [7, 8, 9, 10], "names": ["a", "b"], "scale": torch.tensor(2.0)}
    found = next(iter(Repeated([batch], 2)))
    assert (found["numbers"], found["names"], found["scale"]) == ([7, 8], ["a", "b"], 2.0)


def test_without_a_size_the_largest_batch_of_the_loader_comes_again() -> None:
    batches = [torch.zeros(2, 5), torch.zeros(2, 7), torch.zeros(1, 7)]
    found = [*islice(iter(Repeated(batches, None)), 4)]
    assert [each.shape for each in found] == [(2, 7)] * 4
    assert len({each.data_ptr() for each in found}) == 4
    assert [each.shape for each in islice(iter(Repeated(batches, 3)), 2)] == [(3, 7)] * 2
    assert [*Repeated([], None)] == []


def test_a_loader_without_end_is_looked_at_for_a_while() -> None:
    batches = (torch.zeros(1, size) for size in count(1))
    assert next(iter(Repeated(batches, None))).shape == (1, LOOKED_AT)


@pytest.mark.parametrize(
    ("num_batches", "limit", "batch_size", "expected"),
    [
        (10, 1.0, None, 10),
        (10, 0.5, None, 5),
        (10, 7, None, 7),
        (10, 1.0, 8, 5),  # of twice the size half as many
        (10, 7, 8, 5),
        (10, 1.0, 2**16, NUM_STEPS),
        (1, 1.0, None, NUM_STEPS),
        (1000, 1.0, None, LOOKED_AT),
        (1000, 0.1, None, LOOKED_AT),
        (100, 0.03, None, NUM_STEPS),
    ],
)
def test_an_evaluation_has_as_many_batches_as_in_a_run(
    num_batches: int, limit: float, batch_size: int | None, expected: int
) -> None:
    loader = Repeated([torch.zeros(4, 2)] * num_batches, batch_size, limit)
    taken = int(len(loader) * limit) if isinstance(limit, float) else min(len(loader), limit)
    assert taken == expected


@pytest.mark.parametrize(
    ("widths", "expected", "num_before"),
    [
        ([7, 5, 9], [7, 5, 9, 9, 9], 2),
        ([9, 5, 7], [9, 9, 9, 5, 7], 0),  # what is kept for the others is not there before
        ([9, 5, 9, 7, 7], [5, 9, 9, 9, 7], 1),
        ([9, 9], [9, 9, 9], 0),
    ],
)
def test_what_evaluates_meets_each_other_shape_once_where_the_loader_has_it(
    widths: list[int], expected: list[int], num_before: int
) -> None:
    for size, given in ((2, None), (4, 4)):
        loader = Repeated([torch.zeros(2, each) for each in widths], given, has_others=True)
        assert [tuple(each.shape) for each in loader] == [(size, each) for each in expected]
        assert (loader.num_before, loader.num_others) == (num_before, len(expected) - NUM_STEPS)
        evaluated = Repeated([torch.zeros(2, each) for each in widths], given, 1.0, has_others=True)
        assert len(evaluated) == max(len(widths) if size == 2 else 0, len(expected))


def test_of_a_share_the_trainer_takes_all_shapes() -> None:
    batches = [torch.zeros(2, each) for each in (9, 5)]
    loader = Repeated(batches, None, 0.5, has_others=True)
    taken = islice(iter(loader), int(len(loader) * 0.5))
    assert [each.shape[1] for each in taken] == [9, 9, 9, 5]


def test_a_limit_leaves_room_for_the_largest_batches() -> None:
    batches = [torch.zeros(2, each) for each in (7, 5, 9)]
    assert [each.shape[1] for each in Repeated(batches, None, 3, has_others=True)] == [9] * 3
    assert [each.shape[1] for each in Repeated(batches, None, 4, has_others=True)] == [7, 9, 9, 9]


def test_the_largest_of_many_shapes_come() -> None:
    loader = Repeated([torch.zeros(1, size) for size in range(1, 31)], None, has_others=True)
    assert [each.shape[1] for each in loader] == [*range(23, 31), 30, 30]
    assert [*Repeated([], None, has_others=True)] == []


def _graphs(graphs: list[torch.Tensor]) -> dict[str, Any]:
    """Nodes of all graphs, one behind the other, as libraries for graphs do."""
    sizes = torch.tensor([len(each) for each in graphs])
    return {
        "nodes": torch.cat(graphs),
        "graph": torch.repeat_interleave(torch.arange(len(graphs)), sizes),
        "labels": sizes % 2,
    }


def test_a_batch_without_a_row_a_sample_is_put_together_by_its_loader() -> None:
    graphs = [torch.full((length, 3), float(length)) for length in (4, 2, 7, 5, 1, 2)]
    loader = DataLoader(graphs, batch_size=2, collate_fn=_graphs)  # type: ignore[arg-type]
    (own,) = islice(iter(Repeated(loader, None)), 1)
    assert (len(own["nodes"]), size_of(own, loader.batch_size)) == (12, 2)
    (found,) = islice(iter(Repeated(loader, 5)), 1)
    assert found["labels"].tolist() == [1, 1, 1, 1, 1]
    assert len(found["nodes"]) == 7 + 5 + 7 + 5 + 7
    assert int(found["graph"].max()) == 4


def test_the_second_batch_is_the_one_with_the_least_padding() -> None:
    wide = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]])
    full = torch.tensor([[1, 1, 1], [1, 1, 1]])
    found = [*islice(iter(Repeated([wide, full, full[:, :2]], None)), 3)]
    assert [torch.equal(a, b) for a, b in zip(found, (wide, full, wide), strict=True)] == [True] * 3


def test_rows_are_the_loaders_own_and_large_ones_take_no_memory() -> None:
    batch = (torch.rand(2, 3, 256, 256), torch.tensor([4, 5]))
    pictures, labels = next(iter(Repeated([batch], 5)))
    assert pictures.shape == (5, 3, 256, 256)
    assert not pictures.any()
    assert labels.tolist() == [4, 5, 4, 5, 4]
