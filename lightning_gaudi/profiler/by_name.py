"""`Trainer(profiler="hpu")`."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

_MARK = "_lightning_gaudi_is_patched"


def extend_trainer_setup(setup: ModuleType) -> None:
    """Let the name "hpu" mean `HPUProfiler()`; doing it again is harmless.

    Args:
        setup: Lightning's `trainer.setup`.
    """
    original = getattr(setup, "_init_profiler", None)
    if original is None or hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def init_profiler(trainer: Any, profiler: Any) -> None:
        if isinstance(profiler, str) and profiler.lower() == "hpu":
            from .hpu import HPUProfiler

            profiler = HPUProfiler()
        original(trainer, profiler)

    setattr(init_profiler, _MARK, True)
    setup._init_profiler = init_profiler  # type: ignore[attr-defined]
