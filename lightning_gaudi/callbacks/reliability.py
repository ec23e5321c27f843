"""The switches for what keeps a run, for who leaves the strategy to the Trainer."""

from __future__ import annotations

from lightning_gaudi.reliability.settings import ReliabilitySettings

from ._settings import SettingCallback

__all__ = ["Reliability"]


class Reliability(SettingCallback):
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

    attribute = "reliability_callback"
    does = "keeps runs"

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
        super().__init__(self.settings)
