import pytest
import torch
from torch.utils.data import TensorDataset

from lightning_gaudi.data import evaluation_loader


@pytest.mark.parametrize("num_ranks", [1, 2, 8])
def test_each_sample_is_evaluated_once_in_batches_of_one_shape(num_ranks):
    dataset = TensorDataset(torch.arange(21), torch.randn(21, 3))
    by_rank = [
        list(evaluation_loader(dataset, 4, num_ranks=num_ranks, rank=rank))
        for rank in range(num_ranks)
    ]
    assert len({len(batches) for batches in by_rank}) == 1
    found = []
    for batches in by_rank:
        for indices, features, is_real in batches:
            assert indices.shape == is_real.shape == (4,)
            assert features.shape == (4, 3)
            found += indices[is_real].tolist()
    assert sorted(found) == list(range(21))


def test_one_rank_evaluates_in_order():
    loader = evaluation_loader(TensorDataset(torch.arange(10)), 4)
    found = [indices[is_real] for indices, is_real in loader]
    assert torch.cat(found).tolist() == list(range(10))


def test_mappings_are_marked_by_name():
    samples = [{"x": torch.ones(2) * i, "labels": i} for i in range(3)]
    *_, last = evaluation_loader(samples, 2, num_workers=1)
    assert last["is_real"].tolist() == [True, False]
    assert last["labels"].tolist() == [2, -100]
    assert last["x"].tolist() == [[2, 2], [2, 2]]


def test_an_empty_data_set_is_refused():
    with pytest.raises(ValueError, match="An empty data set has no buckets: check what was loaded"):
        evaluation_loader([], 2)
