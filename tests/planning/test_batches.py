"""Batches of any size, made from those of a loader."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import pytest
import torch
from transformers import BatchEncoding

from lightning_gaudi.planning.batches import Repeated, _tensors, size_of


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
        assert torch.equal(ids, IDS[:1].expand(6, 3))


def test_what_is_no_row_stays() -> None:
    batch = {"ids": IDS, "numbers": [7, 8, 9, 10], "names": ["a", "b"], "scale": torch.tensor(2.0)}
    found = next(iter(Repeated([batch], 2)))
    assert (found["numbers"], found["names"], found["scale"]) == ([7, 7], ["a", "b"], 2.0)


def test_without_a_size_the_batches_of_the_loader_come_again() -> None:
    assert [*islice(iter(Repeated([1, 2], None)), 5)] == [1, 2, 1, 2, 1]
    assert [*Repeated([], None)] == []
