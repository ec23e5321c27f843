"""`state_dict` and `load_state_dict` of an ordinary DataLoader in a loop of the user's own.

As torchdata's `StatefulDataLoader` has them: a loader that is saved with the model goes on where it
stood, in the same order of samples.
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
    """Where a loader is, over the epochs.

    Args:
        loader: One without a state of its own. Its `_get_iterator`, `state_dict` and
            `load_state_dict` are to be replaced by ours.
        rank: Of this process.
        of_all_ranks: Gives a value of each rank, by rank; all ranks call it.
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
        """Yields what `DataLoader._get_iterator` returns: it goes on if a state was loaded."""
        saved, self._loaded = self._loaded, None
        if saved is not None:
            epochs = [epoch + (not saved["is_within"]) for epoch in saved["epochs"]]
            now = [each.epoch for each in self._samplers()]
            # Whoever counts the epochs of this process, as Fabric does, began with the first.
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
        """Returns where the loader is on all ranks, which all must ask: plain data, CPU tensors."""
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
            state: What `state_dict` returned, of as many ranks, or of others that had the same
                samples in a step.

        Raises:
            ValueError: It is of another data set, or the other batches of the epoch would be other
                ones.
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
        loader._iterator = None  # workers that stay have the samples of another place

    @property
    def is_within_epoch(self) -> bool:
        """Whether somebody iterates the loader, and has not had its last batch and been told so."""
        return self._iterator() is not None and not self._position.taken.is_over

    @property
    def num_taken(self) -> int:
        """Batches that were taken of this epoch."""
        return self._position.taken.number

    @property
    def is_forgotten(self) -> bool:
        """Whether batches of this epoch were taken, and nobody has asked for the position."""
        return self.is_within_epoch and self.num_taken > 0 and self._told != self.num_taken

    def _samplers(self) -> list[Any]:
        """Returns those samplers whose order depends on the epoch that they are told."""
        found = parts.samplers(self._position.loader)
        return [
            each
            for each in found
            if hasattr(each, "set_epoch") and isinstance(getattr(each, "epoch", None), int)
        ]


class ResumableLoaders:
    """The loaders that a strategy of Fabric has set up: they go on if they are saved.

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
            loader: What Fabric is about to wrap. One that has a state, or iterates in a way of its
                own, stays as it is.
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
        """Says once that a checkpoint is without the position of a loader that is in use.

        Args:
            state: What is to be saved.
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
