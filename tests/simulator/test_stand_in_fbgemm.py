"""FBGEMM's functions against loops over lists."""

from __future__ import annotations

import pytest
import torch
from habana_frameworks.torch.hpex.kernels import fbgemm

LENGTHS = [2, 0, 3, 1]
INDICES = [10, 11, 20, 21, 22, 30]
BAGS = [[10, 11], [], [20, 21, 22], [30]]


def _hpu(values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype, device="hpu")


def _flat(bags):
    return [index for bag in bags for index in bag]


@pytest.mark.parametrize("permute", [[3, 1, 0, 2], [2, 2], [0, 1, 2, 3]])
def test_bags_are_reordered(permute):
    weights = _hpu([i / 2 for i in INDICES], torch.float32)
    lengths, indices, moved = fbgemm.permute_1D_sparse_data(
        _hpu(permute), _hpu(LENGTHS), _hpu(INDICES), weights
    )
    expected = _flat([BAGS[i] for i in permute])
    assert lengths.tolist() == [LENGTHS[i] for i in permute]
    assert indices.tolist() == expected
    assert moved.tolist() == [i / 2 for i in expected]


def test_features_are_reordered_with_all_their_bags():
    lengths, indices, weights = fbgemm.permute_2D_sparse_data(
        _hpu([1, 0]), _hpu([LENGTHS[:2], LENGTHS[2:]]), _hpu(INDICES), None
    )
    assert lengths.tolist() == [[3, 1], [2, 0]]
    assert indices.tolist() == [20, 21, 22, 30, 10, 11]
    assert weights is None


def test_an_order_of_tables_becomes_one_of_elements():
    offsets = _hpu([0, 2, 2, 5, 6])
    expanded = fbgemm.expand_into_jagged_permute(
        _hpu([2, 0, 3, 1]), offsets, _hpu([0, 3, 5, 6, 6]), 6
    )
    assert expanded.tolist() == [2, 3, 4, 0, 1, 5]
    assert expanded.dtype == torch.int32
    with pytest.raises(ValueError, match="output_size=5, but the tables of permute have 6"):
        fbgemm.expand_into_jagged_permute(_hpu([2, 0, 3, 1]), offsets, offsets, 5)


ROWS, OFFSETS = [4, 10], [0, 2, 3, 3, 5]


@pytest.mark.parametrize(("mode", "warned"), [(1, 3), (2, 0)])
def test_indices_out_of_bounds_become_zero(mode, warned):
    indices, warning = _hpu([3, 4, -1, 9, 10]), _hpu([0], torch.int64)
    fbgemm.bounds_check_indices(_hpu(ROWS), indices, _hpu(OFFSETS), mode, warning, None)
    assert indices.tolist() == [3, 0, 0, 9, 0]
    assert warning.item() == warned


def test_indices_out_of_bounds_raise_if_asked_or_are_left_alone():
    indices, warning = _hpu([3, 4, -1, 9, 10]), _hpu([0])
    arguments = (_hpu(ROWS), indices, _hpu(OFFSETS))
    with pytest.raises(IndexError, match="3 of 5 indices are outside their tables"):
        fbgemm.bounds_check_indices(*arguments, 0, warning, None)
    fbgemm.bounds_check_indices(*arguments, 3, warning, None)
    assert indices.tolist() == [3, 4, -1, 9, 10]
    with pytest.raises(ValueError, match="to the number of indices, 5, got 0 to 4"):
        fbgemm.bounds_check_indices(_hpu(ROWS), indices, _hpu([0, 2, 3, 3, 4]), 2, warning, None)


def test_embeddings_of_several_tables_are_summed_with_gradients():
    tables = [torch.randn(4, 3, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    weights = torch.cat([t.flatten() for t in tables]).to("hpu").requires_grad_()
    out = fbgemm.split_embedding_codegen_lookup_function(
        weights, [0, 12], [0, 3, 6], 6, _hpu([0, 3, 1, 2, 2]), _hpu([0, 2, 2, 3, 5]), 0
    )
    rows = [[tables[0][0] + tables[0][3], torch.zeros(3)], [tables[1][1], 2 * tables[1][2]]]
    expected = torch.cat([torch.stack(row) for row in rows], 1)
    torch.testing.assert_close(out.cpu(), expected)
    out.sum().backward()
    assert weights.grad.reshape(2, 4, 3)[:, :, 0].tolist() == [[1, 0, 0, 1], [0, 1, 2, 0]]
    with pytest.raises(ValueError, match=r"got pooling_mode=1, sizes \[3\], total_D=6"):
        fbgemm.split_embedding_codegen_lookup_function(
            weights, [0, 12], [0, 3, 6], 6, _hpu([0]), _hpu([0, 1, 1]), 1
        )


def test_features_of_a_sample_are_reordered():
    x = torch.arange(12.0).reshape(2, 6)
    out = fbgemm.split_permute_cat(x.to("hpu"), _hpu([2, 0, 1]), 2, 3, 2)
    assert out.tolist() == [[4, 5, 0, 1, 2, 3], [10, 11, 6, 7, 8, 9]]
