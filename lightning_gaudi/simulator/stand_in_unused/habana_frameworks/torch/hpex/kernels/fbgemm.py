"""Implements functions of the FBGEMM library for embeddings of sparse features.

F features or tables, B batch, W weights' dim.

Source: Gaudi PyTorch bridge 1.19, hpex/kernels/fbgemm.py, and Gaudi documentation 1.23, Python
packages, hpex/kernels/FBGEMM; what each computes: the FBGEMM library's functions of the name.
"""

from __future__ import annotations

import itertools
from enum import IntEnum

import torch
from torch.nn import functional

from ...._missing import missing


class _Bounds(IntEnum):
    FATAL = 0
    WARNING = 1
    IGNORE = 2
    NONE = 3


def permute_1D_sparse_data(  # noqa: N802 (the vendor's name)
    permute: torch.Tensor,
    lengths: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Reorders bags of indices.

    Args:
        permute: Which bag comes at each place; bags may come twice or not at all.
        lengths: How many indices each bag has, of shape (bags,).
        indices: All bags' indices in a row.
        weights: All bags' weights in a row, or None.

    Returns:
        Lengths, indices and weights (or None) of the bags in the new order.
    """
    permuted = lengths[permute.long()]
    gathered = _positions(lengths, permute)
    return permuted, indices[gathered], None if weights is None else weights[gathered]


def permute_2D_sparse_data(  # noqa: N802 (the vendor's name)
    permute: torch.Tensor,
    lengths: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Reorders features, each with a bag of indices for every sample.

    Args:
        permute: Which feature comes at each place.
        lengths: How many indices each bag has, of shape (F, B).
        indices: All bags' indices in a row, feature by feature.
        weights: All bags' weights in a row, or None.

    Returns:
        Lengths (len(permute), B), indices and weights (or None) in the new order.
    """
    permuted = lengths[permute.long()]
    gathered = _positions(lengths.sum(1), permute)
    return permuted, indices[gathered], None if weights is None else weights[gathered]


def _positions(lengths: torch.Tensor, permute: torch.Tensor) -> torch.Tensor:
    """Returns the positions of all elements of segments of these lengths, ordered by `permute`."""
    ends = lengths.long().cumsum(0)
    order = permute.long()
    counts = lengths.long()[order]
    starts = (ends - lengths.long())[order]
    first = counts.cumsum(0) - counts
    within = torch.arange(int(counts.sum()), device=lengths.device)
    return within + torch.repeat_interleave(starts - first, counts)


def expand_into_jagged_permute(
    permute: torch.Tensor,
    input_offsets: torch.Tensor,
    output_offsets: torch.Tensor,
    output_size: int,
) -> torch.Tensor:
    """Turns an order of tables into one of their elements.

    Args:
        permute: Which table comes at each place.
        input_offsets: Where each table begins, and where the last one ends.
        output_offsets: The same of the tables in the new order.
        output_size: How many elements there are.

    Returns:
        For each place of an element, where it was; of the dtype of `permute`.

    Raises:
        ValueError: `output_size` is not the number of elements.
    """
    positions = _positions(input_offsets.diff(), permute)
    if positions.numel() != output_size:
        raise ValueError(
            f"output_size={output_size}, but the tables of permute have {positions.numel()} "
            "elements. Pass output_offsets[-1]."
        )
    return positions.to(permute.dtype)


def bounds_check_indices(
    rows_per_table: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    bounds_check_mode: int,
    warning: torch.Tensor,
    weights: torch.Tensor | None,
) -> None:
    """Sets indices that no table has to 0, in place; offsets are only checked.

    Args:
        rows_per_table: How many rows each table has, of shape (F,).
        indices: All bags' indices in a row, table by table.
        offsets: Where each bag begins, and where the last one ends, of shape (F * B + 1,).
        bounds_check_mode: 0 raises, 1 counts in `warning`, 2 is silent, 3 does nothing.
        warning: Counts the indices that were mended, of shape (1,).
        weights: No effect.

    Raises:
        IndexError: An index or an offset is out of bounds, in mode 0.
        ValueError: The offsets do not go with the indices.
    """
    mode = _Bounds(bounds_check_mode)
    if mode is _Bounds.NONE:
        return
    counts = offsets.long().diff()
    if int(offsets[0]) != 0 or int(offsets[-1]) != indices.numel() or bool((counts < 0).any()):
        raise ValueError(
            f"offsets must rise from 0 to the number of indices, {indices.numel()}, "
            f"got {int(offsets[0])} to {int(offsets[-1])}."
        )
    tables = torch.arange(rows_per_table.numel(), device=indices.device)
    per_bag = tables.repeat_interleave(counts.numel() // rows_per_table.numel())
    rows = rows_per_table.long()[per_bag].repeat_interleave(counts)
    outside = (indices < 0) | (indices >= rows)
    num_outside = int(outside.sum())
    if num_outside and mode is _Bounds.FATAL:
        raise IndexError(f"{num_outside} of {indices.numel()} indices are outside their tables.")
    indices.masked_fill_(outside, 0)
    if mode is _Bounds.WARNING:
        warning.add_(num_outside)


def split_embedding_codegen_lookup_function(
    host_weights: torch.Tensor,
    weights_offsets: list[int],
    D_offsets: list[int],  # noqa: N803 (the vendor's name)
    total_D: int,  # noqa: N803 (the vendor's name)
    indices: torch.Tensor,
    offsets: torch.Tensor,
    pooling_mode: int,
    kernel_mode: list[int] | None = None,
) -> torch.Tensor:
    """Sums the embeddings of each bag, for several tables in one tensor.

    Args:
        host_weights: All tables in a row, of shape (elements,).
        weights_offsets: Where each table begins.
        D_offsets: Where each table's embeddings begin in the result, and where the last ones end.
        total_D: The last of these.
        indices: All bags' indices in a row, table by table.
        offsets: Where each bag begins, and where the last one ends, of shape (F * B + 1,).
        pooling_mode: 0, the sum.
        kernel_mode: Which kernel a card takes for each table; no effect here.

    Returns:
        Shape (B, total_D).

    Raises:
        ValueError: Another pooling, or embeddings of different sizes.
    """
    dims = {end - start for start, end in itertools.pairwise(D_offsets)}
    if pooling_mode != 0 or len(dims) != 1 or total_D != D_offsets[-1]:
        raise ValueError(
            f"HPU sums embeddings of one size: got pooling_mode={pooling_mode}, sizes "
            f"{sorted(dims)}, total_D={total_D} where D_offsets end with {D_offsets[-1]}."
        )
    (dim,) = dims
    num_tables = len(D_offsets) - 1
    num_bags = (offsets.numel() - 1) // num_tables
    ends = [*weights_offsets[1:], host_weights.numel()]
    pooled = []
    for table, (start, end) in enumerate(zip(weights_offsets, ends, strict=True)):
        bags = offsets[table * num_bags : (table + 1) * num_bags + 1].long()
        weight = host_weights[start:end].reshape(-1, dim)
        used = indices[int(bags[0]) : int(bags[-1])].long()
        pooled.append(
            functional.embedding_bag(
                used, weight, bags - bags[0], mode="sum", include_last_offset=True
            )
        )
    return torch.cat(pooled, 1)


def split_permute_cat(
    input: torch.Tensor,
    indices: torch.Tensor,
    batch_size: int,
    num_features: int,
    dims: int,
) -> torch.Tensor:
    """Reorders the features of each sample.

    Args:
        input: Shape (B, F * W).
        indices: Which feature comes at each place, of shape (F,).
        batch_size: B.
        num_features: F.
        dims: W.

    Returns:
        Shape (B, F * W).
    """
    features = input.reshape(batch_size, num_features, dims)
    return features[:, indices.long()].reshape(batch_size, -1)


__getattr__ = missing(__name__)
