"""The switch for compiling, for who leaves the strategy to the Trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_gaudi.compilation.settings import Compilation

__all__ = ["Compile"]


class Compile(Callback):
    """Compile what trains on an HPU: as `compile=` of a strategy, which comes before it.

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

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Tells the strategy, before it sets up the model."""
        strategy: Any = trainer.strategy
        if hasattr(strategy, "compile_callback"):
            strategy.compile_callback = self.compilation
        else:
            rank_zero_warn(
                f"The callback Compile compiles on HPUs, and this Trainer runs on "
                f"{strategy.root_device.type!r}: it has no effect."
            )

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leaves the strategy as it was."""
        strategy: Any = trainer.strategy
        if hasattr(strategy, "compile_callback"):
            strategy.compile_callback = None
