"""The switches for what keeps a run, for who leaves the strategy to the Trainer."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_gaudi.reliability.settings import ReliabilitySettings

__all__ = ["Reliability"]


class Reliability(Callback):
    """What keeps a run on an HPU when something fails: as `reliability=` of a strategy.

    All of it is on where nobody says otherwise; the argument of the strategy comes before this.

    Args:
        exact_resume: checkpoints hold all random states and the position in the data.
        verify_checkpoints: they are saved with checksums, and compared with them when loaded.
        async_save: they are written while training goes on.
        save_on_exit: a fit that a signal ends saves its state first.
        auto_resume: a fit that was started again goes on from the newest valid checkpoint.
        stop_on_nan: a loss that is not finite ends the run.
        watchdog: a rank that hangs or has died is named, and all ranks end.
        watchdog_timeout_s: how long a rank may be silent; None for the process group's timeout.
        trust_checkpoints: whether loading a checkpoint may run code that is in it.

    Raises:
        ValueError: A value is none of these.
    """

    def __init__(
        self,
        exact_resume: bool = True,
        verify_checkpoints: bool = True,
        async_save: bool = False,
        save_on_exit: bool = True,
        auto_resume: bool = True,
        stop_on_nan: bool = True,
        watchdog: bool = True,
        watchdog_timeout_s: float | None = None,
        trust_checkpoints: bool = False,
    ) -> None:
        self.settings = ReliabilitySettings(
            exact_resume,
            verify_checkpoints,
            async_save,
            save_on_exit,
            auto_resume,
            stop_on_nan,
            watchdog,
            watchdog_timeout_s,
            trust_checkpoints,
        )

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Tells the strategy, before it sets up the model."""
        strategy: Any = trainer.strategy
        if hasattr(strategy, "reliability_callback"):
            strategy.reliability_callback = self.settings
        else:
            rank_zero_warn(
                f"The callback Reliability keeps runs on HPUs, and this Trainer runs on "
                f"{strategy.root_device.type!r}: it has no effect."
            )

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leaves the strategy as it was."""
        strategy: Any = trainer.strategy
        if hasattr(strategy, "reliability_callback"):
            strategy.reliability_callback = None
