"""Lists the operators of a trace in a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from .steps import show_seconds

_MODULE = "[pl][module]"
_HOOKS = ("ProfilerStep", "[pl][profile][", "[pl][profile]run_training_")
"""Ranges in the trace that are not operators; the user's own ranges are listed."""
_NAME_WIDTH = 44


@dataclass(frozen=True)
class OperatorTable:
    """How operators are listed."""

    sort_by: str
    """One of `settings.SORT_KEYS`."""
    row_limit: int
    """How many are listed; -1 for all."""
    by_shape: bool
    """Whether operators of different input shapes are told apart."""
    torchs: dict[str, Any] = field(default_factory=dict)
    """Arguments of torch's `EventList.table`; if there are any, its table replaces ours."""

    def show(self, averages: Any) -> str:
        """Returns the table of the averages of torch's profiler."""
        if self.torchs:
            table = averages.table(sort_by=self._key, row_limit=self.row_limit, **self.torchs)
            return str(table).rstrip()
        everything = list(averages)
        total_us = sum(event.self_cpu_time_total for event in everything) or 1.0
        has_device = any(event.self_device_time_total for event in everything)
        shown = [event for event in everything if not event.key.startswith(_HOOKS)]
        shown.sort(key=attrgetter(self._key), reverse=True)
        rows = [f"{'':{_NAME_WIDTH}}" + _cells(self._titles(has_device))]
        for event in shown[: None if self.row_limit == -1 else self.row_limit]:
            rows.append(
                f"{_name(event):{_NAME_WIDTH}}" + _cells(self._row(event, total_us, has_device))
            )
            if self.by_shape:
                rows.append(f"  {event.input_shapes}")
        return "\n".join(rows)

    @property
    def _key(self) -> str:
        return self.sort_by.replace("hpu", "device")

    def _titles(self, has_device: bool) -> list[str]:
        titles = ["calls", "host, self", "share", "host, total"]
        titles += ["HPU, self"] if has_device else []
        return titles + (["host memory"] if "memory" in self.sort_by else [])

    def _row(self, event: Any, total_us: float, has_device: bool) -> list[str]:
        cells = [f"{event.count:,}", _time(event.self_cpu_time_total)]
        cells += [f"{event.self_cpu_time_total / total_us:.1%}", _time(event.cpu_time_total)]
        cells += [_time(event.self_device_time_total)] if has_device else []
        if "memory" in self.sort_by:
            cells.append(f"{getattr(event, self._key) / 1024:,.1f} KiB")
        return cells


def _cells(texts: Iterable[str]) -> str:
    return "".join(f"{text:>12}" for text in texts)


def _name(event: Any) -> str:
    name = str(event.key).removeprefix("[pl][profile]")
    if name.startswith(_MODULE):
        kind, _, module = name.removeprefix(_MODULE).partition(": ")
        name = f"{module} ({kind.rpartition('.')[2]})"
    return name if len(name) < _NAME_WIDTH else f"{name[: _NAME_WIDTH - 4]}..."


def _time(microseconds: float) -> str:
    return show_seconds(microseconds / 1e6)
