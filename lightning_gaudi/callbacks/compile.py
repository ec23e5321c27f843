"""The switch for compiling, for who leaves the strategy to the Trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lightning_gaudi.compilation.settings import Compilation

from ._settings import SettingCallback

__all__ = ["Compile"]


class Compile(SettingCallback):
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
