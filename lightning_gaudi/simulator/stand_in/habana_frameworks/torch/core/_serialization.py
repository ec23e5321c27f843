"""Replaces `torch.save` and `torch.load` in lazy mode, so that files hold CPU tensors.

Unlike the vendor's, files keep torch's default pickle protocol, so that other programs can load
them with `weights_only=True`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def overwrite() -> None:
    """Replaces `torch.save` and `torch.load`."""
    torch.save = _saving_from_cpu(torch.save)
    torch.load = _loading_to_cpu(torch.load)


def _saving_from_cpu(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        original(_map_tensors(obj, _to_cpu), f, *args, **kwargs)

    return save


def _loading_to_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(
        f: Any,
        map_location: Any = None,
        pickle_module: Any = None,
        weights_only: bool | None = False,  # the vendor's default, not torch's
        mmap: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        loaded = original(
            f,
            map_location="cpu",
            pickle_module=pickle_module,
            weights_only=bool(weights_only),
            mmap=mmap,
            **kwargs,
        )
        return _relocate(loaded, map_location)

    return load


def _relocate(obj: Any, map_location: Any) -> Any:
    if isinstance(map_location, dict):
        map_location = map_location.get("cpu", "cpu")
    if map_location is None or str(map_location) == "cpu":
        return obj
    if callable(map_location):
        return _map_tensors(obj, lambda tensor: map_location(tensor, tensor.device))
    return _map_tensors(obj, lambda tensor: tensor.to(map_location))


def _to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().cpu()


def _map_tensors(obj: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """Applies `function` to the tensors in dicts, lists and tuples, which become plain ones."""
    if isinstance(obj, torch.Tensor):
        return function(obj)
    if isinstance(obj, torch.Size):
        return obj
    if isinstance(obj, dict):
        return {key: _map_tensors(value, function) for key, value in obj.items()}
    if isinstance(obj, list):
        return [_map_tensors(value, function) for value in obj]
    if isinstance(obj, tuple):
        return tuple(_map_tensors(value, function) for value in obj)
    return obj
