"""Says once, after a few steps, that a model trains eager and nothing of it is compiled."""

from __future__ import annotations

from collections.abc import Callable

from lightning_gaudi._core import vendor

_FIRST, _LAST = 2, 3
"""Between which steps launches are counted: the first ones set up the optimizer's states."""


class LaunchAdvice:
    """Counts steps of the optimizer, and tells after a few.

    Args:
        tell: Is given the text.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._num_steps = 0
        self._before: int | None = None

    def note_step(self) -> None:
        """A step has been taken."""
        self._num_steps += 1
        if self._num_steps == _FIRST:
            self._before = _num_launches()
        elif self._num_steps == _LAST:
            now = _num_launches()
            before, count = self._before, ""
            if before is not None and now is not None and now >= before:  # else it was set to 0
                count = f": {now - before} a step"
            self._tell(
                f"This model trains in eager mode and nothing of it is compiled, so each operator "
                f"is a launch of the device{count}. Pass compile='regions' to the strategy, add "
                "lightning_gaudi.callbacks.Compile() to the Trainer's callbacks, or set "
                "LIGHTNING_GAUDI_COMPILE=regions."
            )


def _num_launches() -> int | None:
    metric = vendor.metric("launch")
    return None if metric is None else int(metric["TotalNumber"])
