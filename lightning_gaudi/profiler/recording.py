"""Torch's profiler over the steps that a schedule picks, with the HPU where it can be recorded.

The vendor replaces classes of `torch.profiler` when its package is imported (release 1.19), and
newer torch has an activity for the HPU of its own. Nothing here is therefore bound at import: what
is in `torch.profiler` when recording starts is what is used, whoever imported what first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.profiler import ProfilerAction, record_function

from lightning_gaudi._core import vendor

from .schedule import Schedule

# Bound now, before the vendor may replace it.
_TORCHS_ACTIVITY = torch.autograd.ProfilerActivity  # type: ignore[attr-defined]
_RECORDS = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


class Recorder:
    """Records steps and the ranges in them.

    Args:
        schedule: Says of each step, counted from 0, what to do.
        activities: What to record; the host, and the HPU where that is possible, by default.
        is_hpu: Whether the steps run on an HPU.
        on_ready: Is called with torch's profiler and the recorded steps when a trace is complete.
        settings: Further arguments of `torch.profiler.profile`.
    """

    def __init__(
        self,
        schedule: Schedule,
        activities: Iterable[Any] | None,
        is_hpu: bool,
        on_ready: Callable[[Any, list[int]], None],
        settings: dict[str, Any],
    ) -> None:
        self.problem: str | None = None
        """Why nothing can be recorded, or why the device cannot."""
        self.has_hpu = False
        """Whether the device is asked to record itself."""
        self._on_ready = on_ready
        self._ranges: dict[str, list[AbstractContextManager[Any]]] = {}
        self._steps: list[int] = []
        self._profile: Any = None
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            self.problem = "No trace: another torch.profiler is running."
            return
        profiler = torch_profiler()
        chosen = self._choose(profiler, activities, is_hpu)
        self._profile = profiler.profile(
            activities=chosen, schedule=schedule, on_trace_ready=self._ready, **settings
        )
        self._profile.start()

    @property
    def is_recording(self) -> bool:
        """Whether the current step is recorded."""
        return self._profile is not None and self._profile.current_action in _RECORDS

    def advance(self) -> None:
        """The step has ended; where its trace is complete, `on_ready` is called."""
        if self._profile is not None:
            if self.is_recording:
                self._steps.append(self._profile.step_num)
            self._profile.step()

    def stop(self) -> None:
        """Record no more; what has been recorded of an unfinished trace goes to `on_ready`."""
        profile, self._profile = self._profile, None
        self._ranges.clear()
        if profile is not None:
            profile.stop()

    def enter(self, name: str) -> None:
        """Begin a range, if the step is recorded."""
        if self.is_recording:
            # The prefix by which TensorBoard's plugin knows Lightning's ranges.
            recorded = record_function(f"[pl][profile]{name}")
            recorded.__enter__()  # type: ignore[no-untyped-call]
            self._ranges.setdefault(name, []).append(recorded)

    def exit(self, name: str) -> None:
        """End the range."""
        if self._ranges.get(name):
            self._ranges[name].pop().__exit__(None, None, None)

    def _ready(self, profile: Any) -> None:
        steps, self._steps = self._steps, []
        if steps:
            self._on_ready(profile, steps)

    def _choose(self, profiler: Any, asked: Iterable[Any] | None, is_hpu: bool) -> list[Any]:
        """The activities under the names of the profiler as it is now."""
        kinds = profiler.ProfilerActivity
        chosen = (
            ["CPU", "HPU"] if asked is None else [getattr(kind, "name", kind) for kind in asked]
        )
        if "HPU" in chosen:
            self.has_hpu = is_hpu and _has_hpu_activity(profiler)
            if not self.has_hpu:
                chosen.remove("HPU")
                if is_hpu:
                    self.problem = (
                        "The trace shows the host only: this torch and this release of the "
                        "vendor's package cannot record the HPU."
                    )
        return [getattr(kinds, kind) if isinstance(kind, str) else kind for kind in chosen]


def torch_profiler() -> Any:
    """`torch.profiler`, after the vendor has replaced what it replaces."""
    if vendor.is_available():
        vendor.package()
    return torch.profiler


def _has_hpu_activity(profiler: Any) -> bool:
    activity = getattr(profiler.ProfilerActivity, "HPU", None)
    # The vendor's own class has the activity because the vendor records it; torch's has it anyway.
    is_torchs = isinstance(activity, _TORCHS_ACTIVITY)
    return activity in profiler.supported_activities() if is_torchs else activity is not None
