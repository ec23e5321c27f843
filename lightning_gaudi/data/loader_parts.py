"""Finds what draws and orders the batches of a DataLoader, and whether that can be repeated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, SequentialSampler


def is_ordinary(loader: Any) -> bool:
    """Returns whether a loader is a DataLoader that iterates as torch's does, without a state."""
    if not isinstance(loader, DataLoader) or hasattr(loader, "state_dict"):
        return False
    return type(loader)._get_iterator is DataLoader._get_iterator


def has_order(loader: DataLoader[Any]) -> bool:
    """Returns whether the next samples are known without loading them, as indices of a data set."""
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
    """Returns the samplers of a loader: of its batches, and of the samples in them."""
    found: dict[int, Any] = {}
    for each in (loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)):
        found[id(each)] = each
    found[id(loader.sampler)] = loader.sampler
    return [each for each in found.values() if each is not None]


def distributed(loader: DataLoader[Any]) -> list[DistributedSampler[Any]]:
    """Returns the samplers of a loader that give each rank its own samples."""
    return [each for each in samplers(loader) if isinstance(each, DistributedSampler)]


def generators(loader: DataLoader[Any]) -> list[torch.Generator]:
    """Returns the user's own generators that draw an epoch's order and the workers' seed."""
    found: dict[int, torch.Generator] = {}
    for owner in (loader, *samplers(loader)):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            found[id(generator)] = generator
    return list(found.values())


_ORDERED = ("distributed", "sequential")


def describe(loader: Any) -> dict[str, Any]:
    """Returns, as plain data, what the order of a loader depends on beside random states.

    Args:
        loader: the object that is iterated over on this rank.
    """
    if not isinstance(loader, DataLoader):
        return {"batch_size": None, "num_samples": None, "order": "other"}
    batches = loader.batch_sampler
    sampler = getattr(batches, "sampler", loader.sampler)
    order = "distributed" if isinstance(sampler, DistributedSampler) else "other"
    if isinstance(sampler, SequentialSampler):
        order = "sequential"
    try:
        num_samples = len(loader.dataset)  # type: ignore[arg-type]
    except TypeError:
        num_samples = None
    size = getattr(batches, "batch_size", None) or loader.batch_size
    return {"batch_size": size, "num_samples": num_samples, "order": order}


def check_order(
    saved: list[Mapping[str, Any]],
    now: list[Mapping[str, Any]],
    ranks: tuple[int, int],
    advice: str,
) -> None:
    """Refuses to go on within an epoch whose remaining batches would differ.

    Args:
        saved: what `describe` returned of each loader when the checkpoint was saved.
        now: what it returns now.
        ranks: the number of ranks then and now.
        advice: the end of the error's message, which says how to go on otherwise.

    Raises:
        ValueError: the batches would differ.
    """
    for before, after in zip(saved, now, strict=True):
        is_same = ranks[0] == ranks[1] and before["batch_size"] == after["batch_size"]
        if before["num_samples"] != after["num_samples"]:
            raise ValueError(
                "The checkpoint was saved within an epoch of a data set with "
                f"{before['num_samples']} samples, and this one has {after['num_samples']}: "
                f"their order is another. Resume with the same data. {advice}"
            )
        if not is_same and not _has_same_steps(before, after, ranks):
            raise ValueError(
                f"The checkpoint was saved within an epoch by {_say(ranks[0], before)}, and this "
                f"fit has {_say(ranks[1], after)}: it cannot go on in the same order of samples. "
                "Resume with as many ranks and the same batch size; other numbers are possible "
                "where a step has as many samples as before, and a DistributedSampler orders them "
                f"in both (Lightning's own on several ranks). {advice}"
            )


def _has_same_steps(
    before: Mapping[str, Any], after: Mapping[str, Any], ranks: tuple[int, int]
) -> bool:
    sizes = before["batch_size"], after["batch_size"]
    is_ordered = before["order"] == after["order"] and before["order"] in _ORDERED
    has_all = before["order"] == "distributed" or ranks == (1, 1)
    return (
        is_ordered and has_all and None not in sizes and sizes[0] * ranks[0] == sizes[1] * ranks[1]
    )


def _say(num_ranks: int, loader: Mapping[str, Any]) -> str:
    size = loader["batch_size"]
    samples = "" if size is None else f" of {size} samples ({size * num_ranks} a step)"
    return f"{num_ranks} rank{'s' if num_ranks > 1 else ''} with batches{samples}"
