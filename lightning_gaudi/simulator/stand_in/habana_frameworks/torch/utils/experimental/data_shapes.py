"""Counts the shapes of a loader's batches, and picks batches of one shape."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader

from ...._missing import missing
from ._table import table

_MAX_WIDTH = 120
# A loader with more shapes than the number has such a degree.
_DEGREES = ((20, "a lot of"), (5, "some"), (1, "a little"), (0, "no"))


def get_shape(item: object) -> Hashable:
    """Returns the shapes in a batch, as something that can be a dict's key.

    Args:
        item: A tensor; a list, tuple or dict of items; or anything that has a hash.

    Returns:
        A tensor's shape as a tuple; a tuple of a list's or tuple's shapes; pairs of what a dict's
        keys and values give; the hash of anything else.

    Raises:
        TypeError: Something in it has no hash.
    """
    if isinstance(item, torch.Tensor):
        return tuple(item.shape)
    if isinstance(item, (list, tuple)):
        return tuple(get_shape(part) for part in item)
    if isinstance(item, dict):
        return tuple((get_shape(key), get_shape(value)) for key, value in item.items())
    try:
        result = hash(item)
    except TypeError:
        raise TypeError(
            f"A batch has a {type(item).__name__}, which has neither a shape that is looked at nor "
            "a hash. Make it a tensor in the loader's collate_fn."
        ) from None
    _tell_of_hash(type(item))
    return result


@functools.cache
def _tell_of_hash(kind: type) -> None:
    print(f"get_shape: {kind.__name__} is no tensor, list, tuple or dict; its hash stands for it.")


def data_dynamicity(dl: Iterable[Any]) -> dict[Hashable, int]:
    """Counts the shapes of a loader's batches, and prints them.

    Args:
        dl: A DataLoader.

    Returns:
        How many batches have each shape, as `get_shape` gives it.

    Raises:
        AssertionError: This is one of several ranks (the vendor's type of error).

    Source: Gaudi PyTorch bridge 1.19, utils.experimental.data_dynamicity.
    """
    check_one_process("data_dynamicity")
    shapes = dict(Counter(get_shape(batch) for batch in dl))
    print_result(shapes)
    return shapes


def print_result(hist: dict[Hashable, int]) -> None:
    """Prints shapes with their counts, most frequent first, and how much they vary.

    Args:
        hist: What `data_dynamicity` returns.
    """
    rows = sorted(hist.items(), key=lambda item: -item[1])
    print(table(["Shape", "Count"], rows, _MAX_WIDTH))
    if not hist:
        print("There are no batches; the data set may be empty.")
        return
    degree = next(word for limit, word in _DEGREES if len(hist) > limit)
    print(f"{len(hist)} distinct shapes: {degree} dynamicity in the input")


def const_shape_dataloader(dl: Iterable[Any], maxlen: int) -> DataLoader[Any]:
    """Takes batches of one shape out of a loader, to see a model without dynamic input.

    That shape is the one of which the loader first has more than `maxlen` batches, else its most
    frequent one. The batches are kept in memory.

    Args:
        dl: A DataLoader.
        maxlen: How many batches to take, at the most.

    Returns:
        A DataLoader over those batches.

    Raises:
        AssertionError: There are no batches (the vendor's type of error).
        ValueError: `maxlen` is less than 1.

    Source: Gaudi PyTorch bridge 1.19, utils.experimental.const_shape_dataloader, which fails where
    a shape has `maxlen` batches and none has more.
    """
    if maxlen < 1:
        raise ValueError(f"maxlen={maxlen} must be at least 1.")
    batches: dict[Hashable, list[Any]] = {}
    for batch in dl:
        same = batches.setdefault(get_shape(batch), [])
        if len(same) == maxlen:
            return _loader(same)
        same.append(batch)
    if not batches:
        raise AssertionError("The loader has no batches. See whether its data set is empty.")
    return _loader(max(batches.values(), key=len))


def _loader(batches: list[Any]) -> DataLoader[Any]:
    return DataLoader(batches, batch_size=None)


def check_one_process(what: str) -> None:
    """Checks that no process group is there.

    Raises:
        AssertionError: There is one.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise AssertionError(
            f"{what} works in a single process, and this is one of "
            f"{torch.distributed.get_world_size()} ranks. Run on one card without a launcher."
        )


__getattr__ = missing(__name__)
