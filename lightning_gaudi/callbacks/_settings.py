"""A setting of strategies as a callback, for who leaves the strategy to the Trainer."""

from __future__ import annotations

from typing import Any, ClassVar

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning_utilities.core.rank_zero import rank_zero_warn


class SettingCallback(Callback):
    """Gives a strategy of ours a value while a Trainer runs; the strategy's argument comes first.

    Args:
        value: What the strategy is to take.
    """

    attribute: ClassVar[str]
    """Where the strategy looks for it."""
    does: ClassVar[str]
    """What it does on HPUs, for a message."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Tells the strategy, before it sets up the model."""
        if not self._tell(trainer, self._value):
            rank_zero_warn(
                f"The callback {type(self).__name__} {self.does} on HPUs, and this Trainer runs on "
                f"{trainer.strategy.root_device.type!r}: it has no effect."
            )

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leaves the strategy as it was."""
        self._tell(trainer, None)

    def _tell(self, trainer: Trainer, value: Any) -> bool:
        strategy = trainer.strategy
        if is_ours := hasattr(strategy, self.attribute):
            setattr(strategy, self.attribute, value)
        return is_ours
