"""What of a DataLoader draws and orders its batches, and whether that can be done again."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset


def is_ordinary(loader: Any) -> bool:
    """Returns whether it is a DataLoader that iterates as torch's, and has no state of its own."""
    if not isinstance(loader, DataLoader) or hasattr(loader, "state_dict"):
        return False
    return type(loader)._get_iterator is DataLoader._get_iterator


def has_order(loader: DataLoader[Any]) -> bool:
    """Returns whether what comes next is known without loading it; an iterable has no indices."""
    return not isinstance(loader.dataset, IterableDataset)


def reason_against(loader: DataLoader[Any]) -> str | None:
    """Returns why a loader cannot go on exactly, in words for a user; None if it can."""
    has_state = hasattr(loader.dataset, "load_state_dict")
    if not has_order(loader) and not has_state:
        return (
            f"its data set {type(loader.dataset).__name__} is iterable, and has no state_dict "
            "and load_state_dict that could tell and take up its position: it begins anew"
        )
    if not has_order(loader) and loader.num_workers:
        return (
            "its data set is iterable, and a worker that was through with its part may begin "
            "anew; torchdata's StatefulDataLoader knows which were"
        )
    if loader.num_workers and not getattr(loader, "in_order", True):
        return "in_order=False gives the batches of workers in the order of their arrival"
    return None


def samplers(loader: DataLoader[Any]) -> list[Any]:
    """Returns what gives the indices of its batches, and of the samples in them."""
    found: dict[int, Any] = {}
    for each in (loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)):
        found[id(each)] = each
    found[id(loader.sampler)] = loader.sampler
    return [each for each in found.values() if each is not None]


def distributed(loader: DataLoader[Any]) -> list[DistributedSampler[Any]]:
    """Returns those of them that give each rank its own samples."""
    return [each for each in samplers(loader) if isinstance(each, DistributedSampler)]


def generators(loader: DataLoader[Any]) -> list[torch.Generator]:
    """Returns the user's own that an epoch's order and the workers' seed are drawn from."""
    found: dict[int, torch.Generator] = {}
    for owner in (loader, *samplers(loader)):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            found[id(generator)] = generator
    return list(found.values())
