"""What a rehearsal asks of the run that it measures, a Trainer's or a loop of the user's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NoReturn

from lightning_gaudi.tools.plan.batches import batch_size_of, size_of


class Run(ABC):
    """A run on a dry card, as it is now."""

    batch_size: int | None = None
    """Of all batches; None for the program's own."""
    of_loader: int | None = None
    """What its loader of training says of its batches."""

    def note_first_loader(self, loader: Any) -> None:
        """Notes what a loader says of its batches, if it is the first one."""
        if self.of_loader is None:
            self.of_loader = batch_size_of(loader)

    def size_of(self, batch: Any) -> int:
        """Returns how many samples a batch of training has."""
        return self.batch_size or size_of(batch, self.of_loader)

    @property
    @abstractmethod
    def strategy(self) -> Any:
        """Of the Trainer or Fabric."""

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
