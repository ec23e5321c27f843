"""Measures what each step costs the host and makes the device do, cheaply enough for every step."""

from __future__ import annotations

import statistics
import time
from array import array
from collections.abc import Callable
from typing import NamedTuple

from lightning_gaudi._core import vendor
from lightning_gaudi._core.recompilations import MAX_CAUSES, Recompilations

HOST, GAP, DATA = "step on the host", "between two steps", "  waiting for data"
SYNCS, GRAPHS, COMPILING = "host syncs", "graph compilations", "time compiling"
LAUNCHES, FALLBACKS = "launches", "CPU fallbacks"

_TIMES = (HOST, GAP, DATA, COMPILING)
_ORDER = (HOST, GAP, DATA, LAUNCHES, SYNCS, FALLBACKS, GRAPHS, COMPILING)
_COUNTS = {LAUNCHES: "launch", SYNCS: "host_sync", FALLBACKS: "cpu_fallback"}

Totals = dict[str, float]
"""The totals since the start of the process by row of the table; times are in seconds."""


def device_totals() -> Totals:
    """Returns the device's counts, without waiting for it."""
    totals: Totals = {}
    for row, name in _COUNTS.items():
        if (metric := vendor.metric(name)) is not None:
            totals[row] = metric["TotalNumber"]
    graphs = vendor.metric("graph_compilation")
    if graphs is not None:
        totals[GRAPHS] = graphs["TotalNumber"]
        totals[COMPILING] = graphs["TotalTime"] / 1e6  # the vendor counts microseconds
    return totals


class _Stopwatch:
    """Counts seconds while it runs; it starts at once by default."""

    def __init__(self, *, is_running: bool = True) -> None:
        self._seconds = 0.0
        self._since: float | None = None
        if is_running:
            self.run()

    @property
    def seconds(self) -> float:
        """The time until now, without pauses."""
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        return self._seconds + running

    def run(self) -> None:
        """Starts or continues counting."""
        self._since = time.perf_counter()

    def pause(self) -> None:
        """Stops counting until `run`."""
        self._seconds, self._since = self.seconds, None


class StepMeter:
    """Measures steps, without waiting for the device.

    The profiler calls, for each step and in this order:

    | call | what it does |
    |---|---|
    | `open` | charges what the device counts, from here on, to the step |
    | `fetch_started`, `fetch_stopped` | measure the wait for the batch |
    | `step_started`, `step_stopped` | measure the step on the host; the gap then begins |
    | `close` | ends the charge; returns False if no step has run since the last one |

    So a step is charged with everything from fetching its batch to fetching the next one, or to
    something that is not part of a step, such as a validation. Between `close` and `open` no clock
    runs, since the profiler does its own work there.

    Args:
        read_totals: Returns the device's counts.
        recompilations: Reports why graphs were compiled again.
    """

    def __init__(
        self,
        read_totals: Callable[[], Totals] = dict,
        recompilations: Recompilations | None = None,
    ) -> None:
        self.values: dict[str, array[float]] = {name: array("d") for name in _ORDER}
        self.recompiled: list[str] = []
        self._read_totals = read_totals
        self._recompilations = recompilations
        self._before: Totals | None = None  # the device's counts at `open`; None while closed
        self._num_graphs: float | None = None  # that the device had compiled at the last `close`
        self._has_run = False  # whether a step has run that `close` has not ended
        self._fetching = _Stopwatch(is_running=False)
        self._step: _Stopwatch | None = None  # of the step that runs
        self._gap: _Stopwatch | None = None  # since a step, unless something came between

    @property
    def num_steps(self) -> int:
        """The number of steps that have been measured."""
        return len(self.values[HOST])

    @property
    def is_open(self) -> bool:
        """Whether what happens now is charged to a step."""
        return self._before is not None

    def open(self) -> None:
        """Charges the costs, from here on, to the next step."""
        self._before = self._read_totals()
        if self._recompilations is not None and self._before.get(GRAPHS) != self._num_graphs:
            self._recompilations.skip()  # compiled between steps
        self._fetching = _Stopwatch(is_running=False)
        if self._gap is not None:
            self._gap.run()

    def close(self) -> bool:
        """Ends a step with the costs so far, and returns whether there was one."""
        if not self._has_run:
            return False
        self._has_run = False
        # A step whose batch was not fetched by Lightning was never opened.
        if self._before is not None:
            totals = self._read_totals()
            for name, total in totals.items():
                self.values[name].append(total - self._before.get(name, 0.0))
            self._num_graphs = totals.get(GRAPHS)
            if self._recompilations is not None and self._num_graphs != self._before.get(GRAPHS):
                self._keep(self._recompilations.new())
        self._before = None
        if self._gap is not None:
            self._gap.pause()
        return True

    def _keep(self, causes: list[str]) -> None:
        room = MAX_CAUSES - len(self.recompiled)
        self.recompiled += [f"step {self.num_steps - 1}: {cause}" for cause in causes[:room]]

    def forget_gap(self) -> None:
        """Excludes the time before the next step from the gaps."""
        self._gap = None

    def fetch_started(self) -> None:
        """Notes that a batch is being fetched."""
        # A step that takes the iterator (`dataloader_iter`) fetches by itself, in its own time.
        if self._step is None:
            self._fetching.run()

    def fetch_stopped(self) -> None:
        """Notes that the batch has been fetched."""
        self._fetching.pause()

    def step_started(self) -> None:
        """Notes that the step begins."""
        if self._gap is not None:
            self.values[GAP].append(self._gap.seconds)
            self.values[DATA].append(self._fetching.seconds)
        self._gap = None
        self._step = _Stopwatch()

    def step_stopped(self) -> None:
        """Notes that the step has ended on the host."""
        if self._step is None:
            return
        self.values[HOST].append(self._step.seconds)
        self._step, self._gap = None, _Stopwatch()
        self._has_run = True

    def table(self) -> str:
        """Returns median, maximum and total of each row that was measured."""
        rows = [f"{'':20}{'median':>12}{'max':>12}{'total':>12}"]
        for name in _ORDER:
            values = self.values[name]
            # A card that does not compile, such as a simulated one, has no time for it.
            if values and (name != COMPILING or sum(values)):
                show = show_seconds if name in _TIMES else _number
                figures = (statistics.median(values), max(values), sum(values))
                rows.append(f"{name:20}" + "".join(f"{show(figure):>12}" for figure in figures))
        return "\n".join(rows)


def show_seconds(seconds: float) -> str:
    """Returns a time as a short text."""
    if seconds >= 10:
        return f"{seconds:,.1f} s"
    return f"{seconds * 1e3:,.1f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.3f} ms"


def _number(count: float) -> str:
    return f"{count:,.1f}" if count % 1 else f"{count:,.0f}"


_FIT = "fit"
EPOCH = "run_training_epoch"
"""Lightning's action around all training steps of an epoch."""


class Stage(NamedTuple):
    """The names of Lightning's actions in a stage, or the endings of the names."""

    name: str
    """The Trainer's name: "fit", "validate", "test" or "predict"."""
    title: str
    """The name of its steps."""
    fetch: str
    """Fetching a batch, with which a step begins."""
    step: str
    """The step, without fetching and logging."""
    outermost: str
    """The action around all steps; an exception that leaves it ends the stage."""

    def is_between_steps(self, action_name: str) -> bool:
        """Returns whether an action is not part of a step, and ends one."""
        if self.name == _FIT and ".on_validation_" in action_name:
            return True
        return action_name.endswith("_epoch_end") or action_name == "save_checkpoint"


STAGES = {
    stage.name: stage
    for stage in (
        Stage(_FIT, "training", ".train_dataloader_next", "run_training_batch", EPOCH),
        Stage("validate", "validation", ".val_next", ".validation_step", ".validation_step"),
        Stage("test", "test", ".test_next", ".test_step", ".test_step"),
        Stage("predict", "prediction", ".predict_next", ".predict_step", ".predict_step"),
    )
}
