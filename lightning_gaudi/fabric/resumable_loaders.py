"""The loaders of a loop of the user's own, which go on where they stood if they are saved."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_gaudi._patches.apply import add, replace
from lightning_gaudi.data.loader_parts import is_ordinary
from lightning_gaudi.data.resumable import ResumableLoader
from lightning_gaudi.reliability.guard import Part, Run

_PATCH = "exact-resume"


class ResumableLoaders(Part):
    """Those that a strategy has set up.

    Args:
        run: The strategy.
    """

    def __init__(self, run: Run) -> None:
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
