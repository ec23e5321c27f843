"""What a trace shows, in words: where it is, what it lacks, and its operators."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from .steps import show_seconds
from .trace import save_trace

_VIEWER = "https://ui.perfetto.dev"
_READ = "aten::_local_scalar_dense"
"""The operator below `.item()`."""
_HOOKS = ("ProfilerStep", "[pl][profile][", "[pl][profile]run_training_")
"""Ranges that are in the trace but are no operators; the user's own are listed with these."""
_NAME_WIDTH = 44


@dataclass
class TraceReport:
    """Collects the traces of a run.

    Args:
        rank: Of this process.
        sort_by: What the operators are sorted by, an attribute of torch's averages.
        row_limit: How many are listed; -1 for all.
        by_shape: Whether operators of different input shapes are told apart.
    """

    rank: int
    sort_by: str
    row_limit: int
    by_shape: bool
    lines: list[str] = field(default_factory=list)
    """One for each trace, saved or not."""
    notes: list[str] = field(default_factory=list)
    """What the traces lack."""
    operators: str = ""
    """The table of the last trace."""
    reads: str = ""
    """How many values the steps of the last trace read."""

    def describe(self, profile: Any, steps: list[int]) -> None:
        """Keep the operators of a trace, before it is gone."""
        averages = profile.key_averages(group_by_input_shape=self.by_shape)
        num_reads = sum(event.count for event in averages if event.key == _READ)
        self.reads = f"{num_reads / len(steps):g} times a step"
        self.operators = f"Operators in {_span(steps)}, by {self.sort_by}\n{self._table(averages)}"

    def save(self, profile: Any, steps: list[int], target: str, has_hpu: bool) -> None:
        """Write a trace; where that fails there is one trace less, not a failed run."""
        try:
            has_events = save_trace(profile, target)
        except OSError as error:
            reason = error.strerror or str(error)
            self.lines.append(f"No trace of {_span(steps)}: {reason}")
            warnings.warn(
                f"HPUProfiler on rank {self.rank} goes on without its trace of {_span(steps)}. "
                f"{reason}",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        self.lines.append(f"Trace of {_span(steps)}: {target} (open it at {_VIEWER})")
        if has_hpu and not has_events:
            self.note("The trace shows the host only: the device reported nothing to torch.")

    def note(self, text: str) -> None:
        """Say once what is missing."""
        if text not in self.notes:
            self.notes.append(text)

    def _table(self, averages: Iterable[Any]) -> str:
        everything = list(averages)
        total_us = sum(event.self_cpu_time_total for event in everything) or 1.0
        has_device = any(event.self_device_time_total for event in everything)
        shown = [event for event in everything if not event.key.startswith(_HOOKS)]
        shown.sort(key=attrgetter(self.sort_by), reverse=True)
        titles = ["calls", "host, self", "share", "host, total"]
        titles += ["HPU, self"] if has_device else []
        titles += ["host memory"] if "memory" in self.sort_by else []
        rows = [f"{'':{_NAME_WIDTH}}" + "".join(f"{title:>12}" for title in titles)]
        for event in shown[: None if self.row_limit == -1 else self.row_limit]:
            cells = [f"{event.count:,}", _time(event.self_cpu_time_total)]
            cells += [f"{event.self_cpu_time_total / total_us:.1%}", _time(event.cpu_time_total)]
            cells += [_time(event.self_device_time_total)] if has_device else []
            if "memory" in self.sort_by:
                cells.append(f"{getattr(event, self.sort_by) / 1024:,.1f} KiB")
            rows.append(f"{_name(event):{_NAME_WIDTH}}" + "".join(f"{cell:>12}" for cell in cells))
            if self.by_shape:
                rows.append(f"  {event.input_shapes}")
        return "\n".join(rows)


def _name(event: Any) -> str:
    name = event.key.removeprefix("[pl][profile]")
    return name if len(name) < _NAME_WIDTH else f"{name[: _NAME_WIDTH - 4]}..."


def _time(microseconds: float) -> str:
    return show_seconds(microseconds / 1e6)


def _span(steps: list[int]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
