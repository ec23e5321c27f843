"""Writes metrics to files, as the environment asks.

`PT_HPU_METRICS_FILE` names the file, `PT_HPU_METRICS_FILE_FORMAT` is json or text, and
`PT_HPU_METRICS_DUMP_TRIGGERS` lists occasions: process_exit, mark_step, metric_change, user. Since
2025 metrics are written at the end of the process, or when the program asks, and the variable is
not read any more. The names `HABANA_PT_METRICS_...` work too.
"""

from __future__ import annotations

import atexit
import json
import os
import warnings
from collections.abc import Iterable
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import IO, Any

from ...._missing import missing
from ...._release import release
from ._errors import InvalidMetricDumpFileFormat, InvalidMetricDumpTrigger


class MetricDumpFormat(str, Enum):
    """The file formats."""

    json = "json"
    text = "text"


class MetricDumpTrigger(str, Enum):
    """The occasions for writing."""

    process_exit = "process_exit"
    user = "user"
    if release().number < 122:
        mark_step = "mark_step"
        metric_change = "metric_change"


class Saver:
    """Writes metrics into one file, opened when the first is written.

    Args:
        metrics: The metrics to write.
        path: The file; None writes nothing.
        format: The file's format.
        triggers: The occasions.
    """

    def __init__(
        self,
        metrics: Iterable[Any],
        path: Path | None,
        format: MetricDumpFormat,
        triggers: frozenset[MetricDumpTrigger],
    ) -> None:
        self._metrics = list(metrics)
        self._path = path
        self._format = format
        self._triggers = triggers
        self.is_enabled = False
        self._pid = os.getpid()
        self._file: IO[str] | None = None
        self._last: dict[str, object] = {}

    @classmethod
    def from_environ(cls, metrics: Iterable[Any]) -> Saver:
        """Returns the saver that the environment describes; it closes at exit.

        Raises:
            InvalidMetricDumpFileFormat: `PT_HPU_METRICS_FILE_FORMAT` is unknown.
            InvalidMetricDumpTrigger: `PT_HPU_METRICS_DUMP_TRIGGERS` names an unknown occasion.
        """
        name = _variable("FILE")
        if not name:
            return cls(metrics, None, MetricDumpFormat.json, frozenset())
        format = parse_format(_variable("FILE_FORMAT") or "json")
        saver = cls(metrics, Path(name), format, parse_triggers(_asked_triggers()))
        atexit.register(saver.at_exit)
        return saver

    @classmethod
    def dump(cls, metrics: Iterable[Any], path: Path, format: str) -> None:
        """Writes `metrics` once, as the user asked."""
        user = MetricDumpTrigger.user
        saver = cls(metrics, path, parse_format(format), frozenset({user}))
        saver._write_all(user)
        saver.close()

    def on_mark_step(self) -> None:
        """Writes the metrics that the triggers ask for at a mark_step."""
        if self._triggers and release().number < 122:
            self._write_all(MetricDumpTrigger.mark_step)
            self._write_changed()

    def close(self) -> None:
        """Completes and closes the file."""
        if self._file is not None:
            self._file.write("]\n" if self._format is MetricDumpFormat.json else "")
            self._file.close()
            self._file = None

    def at_exit(self) -> None:
        """Writes the metrics that the triggers ask for at the end, and completes the file."""
        # A launcher imports torch, too, but only a process that has used the device is to write; a
        # fork has inherited the handler.
        if os.getpid() == self._pid and (self.is_enabled or _device_was_used()):
            self._write_changed()
            self._write_all(MetricDumpTrigger.process_exit)
        self.close()

    def _write_changed(self) -> None:
        if release().number < 122 and MetricDumpTrigger.metric_change in self._triggers:
            for metric in self._metrics:
                stats = dict(metric.stats())
                if self._last.setdefault(metric.name(), stats) != stats:
                    self._last[metric.name()] = stats
                    self._write(metric, MetricDumpTrigger.metric_change)

    def _write_all(self, trigger: MetricDumpTrigger) -> None:
        if trigger in self._triggers:
            for metric in self._metrics:
                self._write(metric, trigger)

    def _write(self, metric: Any, trigger: MetricDumpTrigger) -> None:
        assert self._path is not None, "a saver without a file has no triggers"
        is_json = self._format is MetricDumpFormat.json
        is_first = self._file is None
        if self._file is None:
            self._file = _open_new(_with_rank(self._path))
        text = _as_json(metric, trigger) if is_json else _as_text(metric, trigger)
        self._file.write((("[" if is_first else ",\n") if is_json else "") + text)
        self._file.flush()


def _variable(name: str) -> str | None:
    return os.environ.get(f"PT_HPU_METRICS_{name}") or os.environ.get(f"HABANA_PT_METRICS_{name}")


def _asked_triggers() -> str:
    asked = _variable("DUMP_TRIGGERS") or "process_exit"
    if release().number >= 122 and asked != "process_exit":
        warnings.warn(
            f"PT_HPU_METRICS_DUMP_TRIGGERS={asked} has no effect since 2025: metrics are written "
            "when the process ends. Unset it, or call metrics_dump.",
            stacklevel=2,
        )
        return "process_exit"
    return asked


def parse_format(value: str) -> MetricDumpFormat:
    """Returns the format of that name.

    Raises:
        InvalidMetricDumpFileFormat: There is none.
    """
    try:
        return MetricDumpFormat(value)
    except ValueError:
        raise InvalidMetricDumpFileFormat(
            f"{value!r} is no format of a metrics file. Set PT_HPU_METRICS_FILE_FORMAT, or "
            "metrics_dump's format, to json or text."
        ) from None


def parse_triggers(value: str) -> frozenset[MetricDumpTrigger]:
    """Returns the occasions in a comma-separated list.

    Raises:
        InvalidMetricDumpTrigger: One is unknown.
    """
    try:
        return frozenset(MetricDumpTrigger(name.strip()) for name in value.split(","))
    except ValueError:
        known = ", ".join(trigger.value for trigger in MetricDumpTrigger)
        raise InvalidMetricDumpTrigger(
            f"PT_HPU_METRICS_DUMP_TRIGGERS={value!r} has an unknown occasion. "
            f"Separate some of {known} by commas."
        ) from None


def _device_was_used() -> bool:
    from ..._binding import C
    from .._lifecycle import is_initialized

    stats = C.memory_stats()
    return is_initialized() or stats["NumAllocs"] + stats["TotalSystemAllocs"] > 0


def _with_rank(path: Path) -> Path:
    for name in ("RANK", "OMPI_COMM_WORLD_RANK"):
        if name in os.environ:
            return path.with_name(f"{path.stem}-rank{os.environ[name]}{path.suffix}")
    return path


def _open_new(path: Path) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    number = 0
    while True:
        try:
            return (path.with_name(f"{path.name}.{number}") if number else path).open("x")
        except FileExistsError:
            number += 1


def _as_json(metric: Any, trigger: MetricDumpTrigger) -> str:
    return json.dumps(
        {
            "metric_name": metric.name(),
            "triggered_by": trigger.value,
            "generated_on": datetime.now().isoformat(),
            "statistics": dict(metric.stats()),
        }
    )


def _as_text(metric: Any, trigger: MetricDumpTrigger) -> str:
    stats = "".join(f"\t{key}: {value}\n" for key, value in metric.stats())
    return (
        f"Metric name: {metric.name()}\nTriggered by: {trigger.value}\n"
        f"Generated on: {datetime.now()}\nStatistics:\n{stats}\n"
    )


__getattr__ = missing(__name__)
