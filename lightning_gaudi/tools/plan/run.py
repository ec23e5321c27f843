"""What a rehearsal asks of the run that it measures, a Trainer's or a loop of the user's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist

from lightning_gaudi.tools.plan.batches import batch_size_of, size_of


class Run(ABC):
    """A run on a dry card, as it is now."""

    batch_size: int | None = None
    """Of all batches; None for the program's own."""
    of_loader: int | None = None
    """What its loader of training says of its batches."""
    has_loader = True
    """Whether a loader gives its batches, so that others than the program's can be had."""
    has_strategy = True
    """Whether Lightning runs it: its strategy and precision are settings then."""

    def note_first_loader(self, loader: Any) -> None:
        """Notes what a loader says of its batches, if it is the first one."""
        if self.of_loader is None:
            self.of_loader = batch_size_of(loader)

    def size_of(self, batch: Any) -> int:
        """Returns how many samples a batch of training has."""
        return self.batch_size or size_of(batch, self.of_loader)

    @property
    def strategy(self) -> Any:
        """Of the Trainer or Fabric; None where there is neither."""
        return None

    @property
    def num_cards(self) -> int:
        """Cards that run it together: the ranks of its process group."""
        return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1

    @property
    def num_replicas(self) -> int:
        """Groups of cards that each take a batch of their own."""
        found = getattr(self.strategy, "distributed_sampler_kwargs", None) or {}
        return int(found.get("num_replicas", 1))

    @property
    def saves_shards(self) -> bool:
        """Whether each rank saves its part of a model of FullyShardedDataParallel."""
        return bool(self.strategy.saves_shards)

    @property
    @abstractmethod
    def model(self) -> Any:
        """As the strategy has wrapped it; None where nothing is set up."""

    @property
    @abstractmethod
    def optimizers(self) -> list[Any]:
        """As the strategy has wrapped them."""

    @property
    @abstractmethod
    def is_trained(self) -> bool:
        """Whether it takes steps of an optimizer."""

    @property
    @abstractmethod
    def num_micro_batches(self) -> int:
        """Batches of a step of the optimizer."""

    def can_save(self, *, weights_only: bool) -> bool:
        """Returns whether it can save a checkpoint of all, or of the weights alone."""
        return True

    @abstractmethod
    def save(self, path: Path, *, weights_only: bool) -> None:
        """Saves a checkpoint, with the optimizer or without."""

    @abstractmethod
    def end(self) -> NoReturn:
        """Ends it: what is wanted of it is known."""
