"""Computes the metrics as differences of the device's counters.

A global metric counts since the process started, a local one within its `with` block.
"""

from __future__ import annotations

import abc
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from lightning_gaudi.simulator.settings import is_switched_on

from ...._missing import missing
from ...._release import release
from ..._binding import C
from ..._counters import MAX_CAUSES, compiled_graphs
from ...internal import bridge_config
from ._errors import MetricNotFoundError
from .saver import MetricDumpFormat, Saver

Counters = dict[str, int]
Stats = list[tuple[str, object]]


class Metric(abc.ABC):
    """A metric over counters that only grow.

    Args:
        is_global: Whether to count since the process started, instead of from now on.
    """

    title: str
    """The metric's name."""

    def __init__(self, is_global: bool = False) -> None:
        self._base: Counters = {} if is_global else self._read()
        self._final: Counters | None = None

    def name(self) -> str:
        """Returns the metric's name."""
        return self.title

    def stats(self) -> Stats:
        """Returns what was counted, as (key, value) pairs."""
        now = self._read() if self._final is None else self._final
        delta = {key: value - self._base.get(key, 0) for key, value in now.items()}
        return self._present({key: value for key, value in delta.items() if value})

    def reset(self) -> None:
        """Counts again from zero."""
        self._base = self._read()

    def start(self) -> None:
        """Goes on counting after `stop`, with what happened in between."""
        self._final = None

    def stop(self) -> None:
        """Ends the counting."""
        self._final = self._read()

    @abc.abstractmethod
    def _read(self) -> Counters:
        """Returns the counters now."""

    @abc.abstractmethod
    def _present(self, delta: Counters) -> Stats:
        """Returns the counters' differences under the metric's keys."""


class _GraphCompilation(Metric):
    """Graphs compiled, in lazy mode and by torch.compile; it takes no time, as none really is."""

    title = "graph_compilation"

    def _read(self) -> Counters:
        return {"number": C.graph_stats()["num_compilations"] + compiled_graphs.num_graphs}

    def _present(self, delta: Counters) -> Stats:
        number = delta.get("number", 0)
        stats: Stats = [("TotalNumber", number), ("TotalTime", 0), ("AvgTime", 0)]
        if is_switched_on(os.environ.get("PT_HPU_METRICS_GC_DETAILS", "")):
            first = self._base.get("number", 0)
            stats.append(("recipe", [(f"graph_{first + i}", 0) for i in range(number)]))
        return stats


class _CpuFallback(Metric):
    """Operations that the device sends to the CPU."""

    title = "cpu_fallback"

    def _read(self) -> Counters:
        return dict(C.fallback_stats())

    def _present(self, delta: Counters) -> Stats:
        return [("TotalNumber", sum(delta.values())), ("FallbackOps", delta)]


class _MemoryDefragmentation(Metric):
    """Defragmentations of device memory; the simulated device needs none."""

    title = "memory_defragmentation"

    def _read(self) -> Counters:
        return {}

    def _present(self, delta: Counters) -> Stats:
        return [("TotalNumber", 0), ("TotalSuccessful", 0), ("AvgTime", 0), ("MaxTime", 0)]


class _DeviceMemory(Metric):
    """What the vendor's device measures when its context ends; here it is always empty."""

    title = "device_memory"

    def stats(self) -> dict[str, int]:  # type: ignore[override]  # (the vendor's is a dict)
        """Returns nothing, as on a card before its context has ended."""
        return {}

    def _read(self) -> Counters:
        return {}

    def _present(self, delta: Counters) -> Stats:
        return []


class _RecipeCache(Metric):
    """Graphs found, and not found, among the compiled ones, without the counts of each recipe."""

    title = "recipe_cache"

    def _read(self) -> Counters:
        graphs = C.graph_stats()
        return {"hit": graphs["num_cache_hits"], "miss": graphs["num_compilations"]}

    def _present(self, delta: Counters) -> Stats:
        hit, miss = delta.get("hit", 0), delta.get("miss", 0)
        return [("TotalHit", hit), ("RecipeHit", {}), ("TotalMiss", miss), ("RecipeMiss", {})]


class _HostSync(Metric):
    """Waits of the host for the device, by reason; only the simulated HPU counts them."""

    title = "host_sync"

    def _read(self) -> Counters:
        return dict(C.host_syncs())

    def _present(self, delta: Counters) -> Stats:
        return [("TotalNumber", sum(delta.values())), ("Reasons", delta)]


class _Launch(Metric):
    """How often the device was told to run something; only the simulated HPU counts that."""

    title = "launch"

    def _read(self) -> Counters:
        return {"number": C.launches()}

    def _present(self, delta: Counters) -> Stats:
        return [("TotalNumber", delta.get("number", 0))]


class _Recompilation(Metric):
    """Graphs that differ from an earlier one in sizes alone; only the simulated HPU tells them."""

    title = "recompilation"

    def _read(self) -> Counters:
        graphs = C.graph_stats()
        return {
            "lazy": graphs["num_recompilations"],
            "compiled": compiled_graphs.num_recompilations,
            "end_of_log": graphs["num_compilations"],
        }

    def _present(self, delta: Counters) -> Stats:
        lazy, compiled = delta.get("lazy", 0), delta.get("compiled", 0)
        causes = self._lazy_causes(lazy, delta.get("end_of_log", 0))
        causes += list(compiled_graphs.causes)[-compiled:] if compiled else []
        return [("TotalNumber", lazy + compiled), ("Causes", causes)]

    def _lazy_causes(self, number: int, num_compilations: int) -> list[str]:
        """Returns the latest causes."""
        if not number:
            return []
        end = self._base.get("end_of_log", 0) + num_compilations
        # Only as many entries are read as are kept, however long the log is.
        first = max(self._base.get("end_of_log", 0), end - MAX_CAUSES)
        return [cause for _, _, cause in C.compilations(first)[: end - first] if cause]


class _Simulation(Metric):
    """Says that there is no card, and what computes instead; only the simulated HPU has it."""

    title = "simulation"

    def _read(self) -> Counters:
        return {}

    def _present(self, delta: Counters) -> Stats:
        return [("ComputesOn", "the CPU of this machine")]


def _metric_types() -> dict[str, type[Metric]]:
    types: list[type[Metric]] = [_GraphCompilation, _CpuFallback, _MemoryDefragmentation]
    if release().number >= 122:
        types.append(_DeviceMemory)
    if bridge_config.get_pt_hpu_enable_cache_metrics():
        types.append(_RecipeCache)
    own = [_HostSync, _Launch, _Recompilation, _Simulation]
    return {metric.title: metric for metric in [*types, *own]}


_TYPES = _metric_types()
_GLOBAL = {name: metric(is_global=True) for name, metric in _TYPES.items()}
_SAVER = Saver.from_environ(_GLOBAL.values())


def metric_global(name: str) -> Metric | None:
    """Returns the metric that counts since the process started; None if there is none."""
    return _GLOBAL.get(name)


@contextlib.contextmanager
def metric_localcontext(name: str) -> Iterator[Metric]:
    """Counts within a `with` block.

    Raises:
        MetricNotFoundError: There is no metric of that name; MetricNotFound before 1.24.
    """
    if name not in _TYPES:
        raise MetricNotFoundError(f"There is no metric {name!r}. Pass one of {', '.join(_TYPES)}.")
    metric = _TYPES[name]()
    try:
        yield metric
    finally:
        metric.stop()


def metrics_dump(file_name: str | Path, format: str = MetricDumpFormat.json) -> None:
    """Writes the global metrics to a file; with RANK set its name gets "-rank{RANK}".

    Args:
        file_name: The file; if it exists, a number is added.
        format: "json" or "text".

    Raises:
        InvalidMetricDumpFileFormat: There is no such format.
    """
    Saver.dump(_GLOBAL.values(), Path(file_name), format)


def metric_debug_reload() -> None:
    """Starts all metrics from zero, and reads the environment again."""
    global _TYPES, _GLOBAL, _SAVER
    _TYPES = _metric_types()
    _GLOBAL = {name: metric() for name, metric in _TYPES.items()}
    _SAVER = Saver.from_environ(_GLOBAL.values())


def metric_debug_atexit() -> None:
    """Writes the metrics now, as at the end of the process."""
    _SAVER.at_exit()


def metric_debug_enable_saver() -> None:
    """Writes the metrics at the end even if the device is not used."""
    _SAVER.is_enabled = True


def on_mark_step() -> None:
    """Writes the metrics if the environment asks for it at every mark_step."""
    _SAVER.on_mark_step()


__getattr__ = missing(__name__)
