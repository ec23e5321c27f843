"""Defines what a rehearsal needs of the run that it measures, a Trainer's or a user's loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist

from lightning_gaudi.tools.plan.batches import batch_size_of, size_of


class Run(ABC):
    """A run on a dry card, as it is now."""

    batch_size: int | None = None
    """The size of all batches; None for the program's own."""
    of_loader: int | None = None
    """The batch size that its loader of training declares."""
    has_loader = True
    """Whether a loader gives its batches, so that other sizes can be tried."""
    has_strategy = True
    """Whether Lightning runs it, so that its strategy and precision are settings."""

    def note_first_loader(self, loader: Any) -> None:
        """Notes the batch size that a loader declares, if it is the first loader."""
        if self.of_loader is None:
            self.of_loader = batch_size_of(loader)

    def size_of(self, batch: Any) -> int:
        """Returns the number of samples of a training batch."""
        return self.batch_size or size_of(batch, self.of_loader)

    @property
    def strategy(self) -> Any:
        """The strategy of the Trainer or Fabric; None if there is neither."""
        return None

    @property
    def num_cards(self) -> int:
        """The number of cards that run it together, which are the ranks of its process group."""
        return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1

    @property
    def num_replicas(self) -> int:
        """The number of groups of cards that each take a batch of their own."""
        found = getattr(self.strategy, "distributed_sampler_kwargs", None) or {}
        return int(found.get("num_replicas", 1))

    @property
    def saves_shards(self) -> bool:
        """Whether each rank saves its part of a model of FullyShardedDataParallel."""
        return bool(self.strategy.saves_shards)

    @property
    @abstractmethod
    def model(self) -> Any:
        """The model as the strategy has wrapped it; None if nothing is set up."""

    @property
    @abstractmethod
    def optimizers(self) -> list[Any]:
        """The optimizers as the strategy has wrapped them."""

    @property
    @abstractmethod
    def is_trained(self) -> bool:
        """Whether the run takes steps of an optimizer."""

    @property
    @abstractmethod
    def num_micro_batches(self) -> int:
        """The number of batches in a step of the optimizer."""

    def can_save(self, *, weights_only: bool) -> bool:
        """Returns whether the run can save a checkpoint of all, or of the weights alone."""
        return True

    @abstractmethod
    def save(self, path: Path, *, weights_only: bool) -> None:
        """Saves a checkpoint, with the optimizer or without."""

    @abstractmethod
    def end(self) -> NoReturn:
        """Ends the run once everything wanted of it is known."""
