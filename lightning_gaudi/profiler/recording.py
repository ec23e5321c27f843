"""Runs torch's profiler over scheduled steps, with the HPU if that can be recorded.

The vendor replaces classes of `torch.profiler` when its package is imported (releases 1.19 to
1.24), and newer torch has its own activity for the HPU. So names are looked up in `torch.profiler`
when recording starts, and the order of imports does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerAction, record_function

from lightning_gaudi._core import vendor

from .modules import ModuleRanges
from .schedule import Schedule

# Bound at import, before the vendor's package can replace it.
_TORCHS_ACTIVITY = torch.autograd.ProfilerActivity  # type: ignore[attr-defined]
_RECORDS = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
_NO_HPU = (
    "The trace shows the host only: this torch and this release of the vendor's package cannot "
    "record the HPU."
)


@dataclass(frozen=True)
class Recorded:
    """The content of a trace."""

    steps: tuple[int, ...]
    is_whole: bool
    """Whether it also contains what ran around the steps."""

    def __str__(self) -> str:
        if not self.steps:
            return "what ran"
        first, last = self.steps[0], self.steps[-1]
        span, them = (
            (f"step {first}", "it") if first == last else (f"steps {first} to {last}", "them")
        )
        return f"{span} and what ran around {them}" if self.is_whole else span


class Recorder:
    """Records steps, and ranges within and between them.

    Args:
        schedule: Returns what to do in each step, counted from 0; None records until `stop`.
        activities: What to record; the host, and the HPU where that is possible, by default.
        is_hpu: Whether the steps run on an HPU.
        on_ready: Is called with torch's profiler and what it recorded when a trace is complete.
        settings: Further arguments of `torch.profiler.profile`.
        modules: The modules whose ranges are recorded, too.
    """

    def __init__(
        self,
        schedule: Schedule | None,
        activities: Iterable[Any] | None,
        is_hpu: bool,
        on_ready: Callable[[Any, Recorded], None],
        settings: dict[str, Any],
        modules: ModuleRanges | None = None,
    ) -> None:
        self.problem: str | None = None
        """Why nothing can be recorded, or why the device cannot."""
        self.has_hpu = False
        """Whether the device is asked to record itself."""
        self.profile: Any = None
        """Torch's profiler, from the start to `stop`."""
        self._is_whole = schedule is None
        self._on_ready = on_ready
        self._modules = modules
        self._ranges: dict[str, list[AbstractContextManager[Any]]] = {}
        self._step: AbstractContextManager[Any] | None = None
        self._steps: list[int] = []
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            self.problem = "No trace: another torch.profiler is running."
            return
        profiler = torch_profiler()
        if chosen := self._choose(profiler, activities, is_hpu):
            self.profile = profiler.profile(
                activities=chosen, schedule=schedule, on_trace_ready=self._ready, **settings
            )
            # TensorBoard's plugin shows Lightning's ranges only with this entry.
            self.profile.preset_metadata_json("Framework", '"pytorch-lightning"')
            self.profile.start()
            self._show_modules()

    @property
    def is_recording(self) -> bool:
        """Whether the current step is recorded."""
        return self.profile is not None and self.profile.current_action in _RECORDS

    def begin_step(self) -> None:
        """Begins a step, and marks it in the trace unless torch does so by a schedule."""
        if self._is_whole and self.profile is not None:
            self._step = _range(f"ProfilerStep#{self.profile.step_num}")

    def advance(self) -> None:
        """Ends a step; calls `on_ready` if its trace is complete."""
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None
        if self.profile is not None:
            if self.is_recording:
                self._steps.append(self.profile.step_num)
            self.profile.step()
            self._show_modules()

    def stop(self) -> None:
        """Stops recording; an unfinished trace goes to `on_ready`."""
        profile, self.profile = self.profile, None
        self._show_modules()
        self._ranges.clear()
        self._step = None
        if profile is not None:
            profile.stop()

    def discard(self) -> None:
        """Stops recording, and discards an unfinished trace."""
        self._on_ready = lambda profile, recorded: None
        self.stop()

    def enter(self, name: str) -> None:
        """Begins a range, if the step is recorded."""
        if self.is_recording:
            # TensorBoard's plugin recognizes Lightning's ranges by this prefix.
            self._ranges.setdefault(name, []).append(_range(f"[pl][profile]{name}"))

    def exit(self, name: str) -> None:
        """Ends the range."""
        if self._ranges.get(name):
            self._ranges[name].pop().__exit__(None, None, None)

    def _ready(self, profile: Any) -> None:
        recorded, self._steps = Recorded(tuple(self._steps), self._is_whole), []
        if recorded.steps or self._is_whole:
            self._on_ready(profile, recorded)

    def _show_modules(self) -> None:
        """Adds the modules' hooks, which cost time, only while a step is recorded."""
        if self._modules is not None:
            self._modules.show(self.is_recording)

    def _choose(self, profiler: Any, asked: Iterable[Any] | None, is_hpu: bool) -> list[Any]:
        """Returns the activities as members of the profiler's present class."""
        chosen = list(("CPU", "HPU") if asked is None else asked)
        device = [activity for activity in chosen if activity_name(activity) == "HPU"]
        self.has_hpu = bool(device) and is_hpu and _has_hpu_activity(profiler)
        if device and not self.has_hpu:
            chosen = [activity for activity in chosen if activity not in device]
            if is_hpu:
                self.problem = _NO_HPU
        if not chosen:
            self.problem = "No trace: activities=... names the HPU alone, which cannot be recorded."
        kinds = profiler.ProfilerActivity
        return [getattr(kinds, activity_name(activity)) for activity in chosen]


def torch_profiler() -> Any:
    """Returns `torch.profiler` once the vendor's package has made its replacements."""
    if vendor.is_available():
        vendor.package()
    return torch.profiler


def activity_name(activity: Any) -> str:
    """Returns the name of an activity: torch's, the vendor's, or a string."""
    return str(getattr(activity, "name", activity))


def _range(name: str) -> AbstractContextManager[Any]:
    entered = record_function(name)
    entered.__enter__()  # type: ignore[no-untyped-call]
    return entered


def _has_hpu_activity(profiler: Any) -> bool:
    activity = getattr(profiler.ProfilerActivity, "HPU", None)
    # torch's class has the member whether or not anything records it. The vendor's class has it
    # only if the vendor records it.
    is_torchs = isinstance(activity, _TORCHS_ACTIVITY)
    return activity in profiler.supported_activities() if is_torchs else activity is not None
