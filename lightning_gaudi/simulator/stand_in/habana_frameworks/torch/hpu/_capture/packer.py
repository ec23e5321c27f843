"""Implements TensorPacker, which takes the tensors out of nested values and puts others in."""

from __future__ import annotations

import copy
from typing import Any

import torch


class TensorPacker:
    """Takes the tensors out of tuples, lists and dicts, and puts others in their places.

    Args:
        is_out_pack: Whether it is used for results.
        verbose: Whether to say which values are no tensors, and so stay as they are.
    """

    class Index:
        """The place of a tensor."""

        def __init__(self, value: int) -> None:
            self.value = value

        def __repr__(self) -> str:
            return f"#{self.value:d}"

    def __init__(self, is_out_pack: bool = False, verbose: bool = False) -> None:
        self._is_out_pack = is_out_pack
        self._verbose = verbose

    def pack(self, outs: Any) -> tuple[tuple[torch.Tensor, ...], Any]:
        """Returns the tensors in `outs`, and `outs` with an `Index` for each."""
        tensors: list[torch.Tensor] = []

        def take(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                tensors.append(value)
                return self.Index(len(tensors) - 1)
            if self._verbose:
                print(f"[WARNING] A {type(value).__name__} is no input of a graph: it stays.")
            return value

        metadata = _mapped(outs, take)
        return tuple(tensors), metadata

    def unpack(self, tensors: tuple[torch.Tensor, ...], metadata: Any) -> Any:
        """Returns the reverse of `pack`."""

        def put(value: Any) -> Any:
            return tensors[value.value] if isinstance(value, self.Index) else value

        return _mapped(metadata, put)


def _mapped(value: Any, function: Any) -> Any:
    """Copies the tuples, lists and dicts in `value`, with `function` applied to what they hold."""
    if isinstance(value, tuple):
        return tuple(_mapped(element, function) for element in value)
    if isinstance(value, list):
        result = copy.copy(value)
        result[:] = [_mapped(element, function) for element in value]
        return result
    if isinstance(value, dict):
        result = copy.copy(value)
        for key in value:
            result[key] = _mapped(value[key], function)
        return result
    return function(value)
