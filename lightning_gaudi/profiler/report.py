"""The summary of a profiled run: its steps, its traces with what they lack, and its operators."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch.autograd.profiler_util import EventList

from .recording import Recorded
from .steps import SYNCS, StepMeter
from .table import OperatorTable
from .trace import save_stacks, save_trace

_VIEWER = "https://ui.perfetto.dev"
_READ = "aten::_local_scalar_dense"
"""The operator below `.item()`."""


@dataclass
class TraceReport:
    """Collects the traces of a run.

    Args:
        rank: Of this process.
        table: Lists the operators.
    """

    rank: int
    table: OperatorTable
    lines: list[str] = field(default_factory=list)
    """A line for each file, saved or not."""
    notes: list[str] = field(default_factory=list)
    """What the traces lack."""
    operators: str = ""
    """The table of the last trace."""
    reads: str = ""
    """A sentence on how many values the last trace shows to be read."""

    def describe(self, profile: Any, recorded: Recorded) -> EventList | None:
        """Keeps the operators of a trace before it is discarded.

        Returns:
            The trace's events, or None if torch's profiler was told not to make them.
        """
        if getattr(profile.experimental_config, "trace_only", False):
            self.note("No operators: experimental_config has trace_only=True.")
            return None
        averages = profile.key_averages(group_by_input_shape=self.table.by_shape)
        num_reads = sum(event.count for event in averages if event.key == _READ)
        if recorded.is_whole:
            self.reads = f"What was traced called .item() {num_reads} times"
        else:
            a_step = num_reads / len(recorded.steps)
            self.reads = f"The traced steps called .item() {a_step:g} times a step"
        title = f"Operators in {recorded}, by {self.table.sort_by}"
        self.operators = f"{title}\n{self.table.show(averages)}"
        events: EventList = profile.events()
        return events

    def save(self, profile: Any, recorded: Recorded, target: str, has_hpu: bool) -> None:
        """Writes a trace; a failure is reported, and does not end the run."""
        has_events = self._save("trace", recorded, lambda: save_trace(profile, target))
        if has_events is None:
            return
        self.lines.append(f"Trace of {recorded}: {target} (open it at {_VIEWER})")
        if has_hpu and not has_events:
            self.note("The trace shows the host only: the device reported nothing to torch.")

    def save_stacks(self, profile: Any, recorded: Recorded, target: str, key: str) -> None:
        """Writes the stacks of a trace for a flame graph; a failure does not end the run."""
        has_stacks = self._save("stacks", recorded, lambda: save_stacks(profile, target, key))
        if has_stacks is None:
            return
        self.lines.append(f"Stacks of {recorded}, by {key}: {target}")
        if not has_stacks:
            self.note(f"The stacks are empty: torch's profiler has none with {key} above 0.")

    def note(self, text: str) -> None:
        """Notes once what is missing."""
        if text not in self.notes:
            self.notes.append(text)

    def text(self, title: str, meter: StepMeter, device: str, world_size: int) -> str:
        """Returns the whole summary.

        Args:
            title: The name of the steps.
            meter: The meter that has measured them.
            device: The type of the device that they ran on.
            world_size: The number of ranks.
        """
        lines = [f"HPU profile: no {title} step was run."]
        if num_steps := meter.num_steps:
            self._note_missing(device, counts_syncs=bool(meter.values[SYNCS]))
            steps = f"{num_steps} {title} step{'s' if num_steps > 1 else ''}"
            lines = [f"HPU profile of {steps}, rank {self.rank} of {world_size}", meter.table()]
        lines += [f"Recompiled in {cause}" for cause in meter.recompiled]
        lines += [*self.lines, *self.notes, self.operators]
        return "\n".join(line for line in lines if line) + "\n"

    def _note_missing(self, device: str, counts_syncs: bool) -> None:
        if not (self.lines or self.operators or self.notes):
            self.note("No trace: the schedule recorded none of these steps.")
        if device != "hpu":
            self.note(
                f"Not on an HPU but on {device}: host syncs and graph compilations are not "
                "counted, and the trace shows the host only."
            )
        elif not counts_syncs:
            reads = f" {self.reads}, CPU tensors included." if self.reads else ""
            self.note(f"This device does not count host syncs.{reads}")

    def _save(self, what: str, recorded: Recorded, save: Callable[[], bool]) -> bool | None:
        """Returns the result of `save`, or None if it has failed."""
        try:
            return save()
        except OSError as error:
            reason = error.strerror or str(error)
            self.lines.append(f"No {what} of {recorded}: {reason}")
            warnings.warn(
                f"HPUProfiler on rank {self.rank} goes on without its {what} of {recorded}. "
                f"{reason}",
                RuntimeWarning,
                stacklevel=3,
            )
            return None
