"""How Lightning tells that an HPU has no memory left, as it looks for the largest batch."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from lightning_gaudi._core.mirror import Family

from .apply import wrap


def patch_out_of_memory(module: ModuleType, family: Family) -> None:
    """Have the error of an HPU be one that the finder of batch sizes expects.

    Args:
        module: The Trainer's `utilities.memory`.
        family: Not looked at.
    """

    @wrap("trainer-out-of-memory", module, "is_oom_error")
    def is_oom_error(original: Callable[[BaseException], bool], exception: BaseException) -> bool:
        from lightning_gaudi.reliability.memory import is_out_of_memory

        return original(exception) or is_out_of_memory(exception)
