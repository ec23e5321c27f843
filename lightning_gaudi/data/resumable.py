"""Gives an ordinary DataLoader in a user's own loop a `state_dict` and a `load_state_dict`.

They work as those of torchdata's `StatefulDataLoader`: a loader that is saved with the model goes
on where it stood, in the same order of samples.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_warn
from torch.utils.data import DataLoader

from lightning_gaudi._core import host_random
from lightning_gaudi._patches.apply import add, replace
from lightning_gaudi.data import loader_parts as parts
from lightning_gaudi.data.loader_parts import check_order, describe, is_ordinary
from lightning_gaudi.data.position import LoaderPosition

_PATCH = "exact-resume"
_ADVICE = "To begin the data anew, leave the loader out of what is loaded."


class ResumableLoader:
    """Knows where a loader is, over several epochs.

    Args:
        loader: a loader without a state of its own, whose `_get_iterator`, `state_dict` and
            `load_state_dict` the caller replaces by ours.
        rank: the rank of this process.
        of_all_ranks: returns the values of all ranks, by rank; all ranks call it.
    """

    def __init__(
        self, loader: DataLoader[Any], rank: int, of_all_ranks: Callable[[Any], list[Any]]
    ) -> None:
        self._position = LoaderPosition(loader)
        self._rank = rank
        self._of_all_ranks = of_all_ranks
        self._loaded: Mapping[str, Any] | None = None
        self._epochs_later = 0
        self._iterator: Callable[[], Any] = lambda: None
        self._told = 0

    def get_iterator(self) -> Iterator[Any]:
        """Makes the iterator of an epoch, which goes on if a state was loaded."""
        saved, self._loaded = self._loaded, None
        if saved is not None:
            epochs = [epoch + (not saved["is_within"]) for epoch in saved["epochs"]]
            now = [each.epoch for each in self._samplers()]
            # Fabric counts the epochs of this process from 0, and names them to the sampler. The
            # difference is added from here on.
            self._epochs_later = next((a - b for a, b in zip(epochs, now, strict=False)), 0)
            self._position.load_state_dict(saved["position"], within_epoch=saved["is_within"])
        for sampler in self._samplers():
            sampler.set_epoch(sampler.epoch + self._epochs_later)
        if saved is not None and saved["random"] is not None:
            host_random.put(host_random.from_tensors(saved["random"]))
        iterator = self._position.make_iterator()
        self._iterator = weakref.ref(iterator)
        return iterator

    def state_dict(self) -> dict[str, Any]:
        """Returns where the loader is on all ranks, as plain data and CPU tensors; all call it."""
        position = self._position
        self._told = position.taken.number
        own = {
            "position": position.state_dict(),
            "is_within": self.is_within_epoch,
            "epochs": [each.epoch for each in self._samplers()],
            "random": host_random.to_tensors(host_random.take()),
            "order": describe(position.loader),
        }
        return {"ranks": self._of_all_ranks(own)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Lets the next iterator go on where the loader was.

        Args:
            state: what `state_dict` returned, for as many ranks, or for another number of ranks
                that had as many samples in a step.

        Raises:
            ValueError: it is of another data set, or the remaining batches of the epoch would
                differ.
        """
        saved, now = state["ranks"], self._of_all_ranks(None)
        mine = saved[self._rank if len(saved) == len(now) else 0]
        loader = self._position.loader
        if mine["is_within"]:
            ranks = len(saved), len(now)
            check_order([mine["order"]], [describe(loader)], ranks, _ADVICE)
            if (reason := self._position.reason_against) is not None and self._rank == 0:
                warnings.warn(
                    f"A loader cannot go on exactly where it was: {reason}.", stacklevel=2
                )
        if len(saved) != len(now):
            position = LoaderPosition.of_any_rank(mine["position"])
            mine = {**mine, "position": position, "random": None}
        self._loaded = mine
        loader._iterator = None  # workers that stay have prepared samples of another place

    @property
    def is_within_epoch(self) -> bool:
        """Whether the loader is being iterated over, and its iterator has not ended yet."""
        return self._iterator() is not None and not self._position.taken.is_over

    @property
    def num_taken(self) -> int:
        """The number of batches that were taken of this epoch."""
        return self._position.taken.number

    @property
    def is_forgotten(self) -> bool:
        """Whether batches were taken of this epoch since anybody has asked for the position."""
        return self.is_within_epoch and self.num_taken > 0 and self._told != self.num_taken

    def _samplers(self) -> list[Any]:
        """Returns the samplers whose order depends on the epoch that they are told."""
        found = parts.samplers(self._position.loader)
        return [
            each
            for each in found
            if hasattr(each, "set_epoch") and isinstance(getattr(each, "epoch", None), int)
        ]


class ResumableLoaders:
    """Lets the loaders that Fabric has set up go on, if they are saved and loaded.

    Args:
        run: The strategy, a `reliability.guard.Run`.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._known: weakref.WeakKeyDictionary[Any, ResumableLoader] = weakref.WeakKeyDictionary()
        self._has_warned = False

    def loader(self, loader: Any) -> None:
        """Gives an ordinary DataLoader a `state_dict`; see `ResumableLoader`.

        Args:
            loader: the loader that Fabric is about to wrap. It stays as it is if it has a state, or
                iterates in a way of its own.
        """
        if not self._run.reliability.exact_resume or not is_ordinary(loader):
            return
        found = ResumableLoader(
            loader, getattr(self._run, "global_rank", 0), self._run.of_all_ranks
        )
        self._known[loader] = found
        replace(_PATCH, loader, "_get_iterator", found.get_iterator)
        add(_PATCH, loader, "state_dict", found.state_dict)
        add(_PATCH, loader, "load_state_dict", found.load_state_dict)

    def save(self, state: Mapping[str, Any]) -> None:
        """Warns once that a checkpoint lacks the position of a loader that is in use.

        Args:
            state: the objects that are about to be saved.
        """
        saved = [id(each) for each in state.values()]
        for loader, found in self._known.items():
            if self._has_warned or id(loader) in saved or not found.is_forgotten:
                continue
            self._has_warned = True
            rank_zero_warn(
                f"A checkpoint is saved after {found.num_taken} batches of an epoch, and the "
                "loader is not in it: a run that resumes begins the epoch anew. Put the loader "
                'into what is saved and loaded, as fabric.save(path, {..., "loader": loader}).'
            )
