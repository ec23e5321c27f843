"""Callbacks with the settings of strategies, for users who leave the strategy to the Trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_gaudi.compilation.settings import Compilation
from lightning_gaudi.reliability.settings import ReliabilitySettings

__all__ = ["Compile", "Reliability"]


class SettingCallback(Callback):
    """Sets a value of our strategies while a Trainer runs; the strategy's argument has precedence.

    Args:
        value: The value.
    """

    attribute: ClassVar[str]
    """The strategy's attribute for the value."""
    does: ClassVar[str]
    """What it does on HPUs, for messages."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Sets the value before the strategy sets up the model."""
        if not self._tell(trainer, self._value):
            rank_zero_warn(
                f"The callback {type(self).__name__} {self.does} on HPUs, and this Trainer runs on "
                f"{trainer.strategy.root_device.type!r}: it has no effect."
            )

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Removes the value."""
        self._tell(trainer, None)

    def _tell(self, trainer: Trainer, value: Any) -> bool:
        strategy = trainer.strategy
        if is_ours := hasattr(strategy, self.attribute):
            setattr(strategy, self.attribute, value)
        return is_ours


class Compile(SettingCallback):
    """Compiles models on an HPU, like the argument `compile=` of a strategy, which has precedence.

    Args:
        mode: `"none"`, `"model"` or `"regions"`.
        regions: names of the classes of blocks; None finds them.
        options: those of the vendor's compiler.
        dynamic: as for `torch.compile`.
        recompile_limit: how many graphs one function may have.
        on_give_up: `"warn"` or `"error"` where a part of a region cannot be traced.
        foreach: whether torch's own optimizers step all weights of a group at once.

    Raises:
        ValueError: A value is none of these.
    """

    attribute = "compile_callback"
    does = "compiles"

    def __init__(
        self,
        mode: Literal["none", "model", "regions"] = "regions",
        regions: Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
        dynamic: bool | None = False,
        recompile_limit: int = 64,
        on_give_up: Literal["warn", "error"] = "warn",
        foreach: bool = True,
    ) -> None:
        self.compilation = Compilation(
            mode, regions, options, dynamic, recompile_limit, on_give_up, foreach
        )
        super().__init__(self.compilation)


class Reliability(SettingCallback):
    """Sets how a run on an HPU handles failures, like the argument `reliability=` of a strategy.

    The strategy's argument has precedence.

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
        slow_rank_factor: how many times as long as the others a rank takes for what it does by
            itself that is named as slow; None for none.
        slow_rank_s: for how many seconds it must have been so slow.

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
        slow_rank_factor: float | None = 1.5,
        slow_rank_s: float = 60.0,
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
            slow_rank_factor,
            slow_rank_s,
        )
        super().__init__(self.settings)
