"""Graph compilations and host synchronizations, attributed to what caused them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_gaudi._core import vendor

from ._steps import is_log_step

__all__ = ["GraphMonitor", "GraphReport"]

_METRICS = ("graph_compilation", "host_sync")
_STEP, _LOG_STEP, _VALIDATION, _OTHER = "step", "log_step", "validation", "other"


@dataclass
class GraphReport:
    """Counts of a fit by cause; None where the device does not measure them.

    The causes: "step" (training steps), "log_step" (training steps at whose end metrics are read),
    "validation", "other" (setting up, saving, ends of epochs).
    """

    num_steps: int = 0
    num_log_steps: int = 0
    graph_compilations: dict[str, int] | None = None
    host_syncs: dict[str, int] | None = None

    @property
    def training_graphs(self) -> int | None:
        """Graphs compiled in training steps, log steps included."""
        counts = self.graph_compilations
        return None if counts is None else counts[_STEP] + counts[_LOG_STEP]

    @property
    def host_syncs_per_step(self) -> float | None:
        """Host synchronizations of a training step that is not a log step."""
        return None if self.host_syncs is None else self.host_syncs[_STEP] / max(1, self.num_steps)

    @property
    def host_syncs_per_log_step(self) -> float | None:
        """Host synchronizations of a training step at whose end metrics are read."""
        counts = self.host_syncs
        return None if counts is None else counts[_LOG_STEP] / max(1, self.num_log_steps)


@dataclass
class _Counter:
    """One metric of the device: its last total, and what was added to it by each cause."""

    name: str
    last: int | None = None
    by_cause: dict[str, int] = field(default_factory=dict)

    def start(self, is_measured: bool) -> None:
        self.last = self._read() if is_measured else None
        self.by_cause = dict.fromkeys((_STEP, _LOG_STEP, _VALIDATION, _OTHER), 0)

    def attribute(self, cause: str) -> None:
        if self.last is None or (now := self._read()) is None:
            return
        self.by_cause[cause] += now - self.last
        self.last = now

    def counts(self) -> dict[str, int] | None:
        return None if self.last is None else dict(self.by_cause)

    def _read(self) -> int | None:
        metric = vendor.metric(self.name)
        return None if metric is None else int(metric["TotalNumber"])


class GraphMonitor(Callback):
    """Count graph compilations and host synchronizations of a fit, and whose they are.

    A step is charged with everything from its start to the start of the next one, so with the
    loggers and the progress bar too, which read metrics after the callbacks have run. A fast
    training step compiles nothing after the first ones and never waits for the device.

    Attributes:
        report: the counts so far; final after the fit.
    """

    def __init__(self) -> None:
        self.report = GraphReport()
        self._counters = [_Counter(name) for name in _METRICS]
        self._cause = _OTHER

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start counting."""
        self.report = GraphReport()
        self._cause = _OTHER
        is_hpu = trainer.strategy.root_device.type == "hpu"
        for counter in self._counters:
            counter.start(is_hpu)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """From here on the costs are this step's."""
        reads_metrics = is_log_step(trainer, trainer.global_step + 1)
        self._switch(_LOG_STEP if reads_metrics else _STEP)
        if reads_metrics:
            self.report.num_log_steps += 1
        else:
            self.report.num_steps += 1

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From here on the costs are validation's."""
        self._switch(_VALIDATION)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What follows, such as saving, is neither validation nor the step's."""
        self._switch(_OTHER)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """From here on the costs are the checkpoint's."""
        self._switch(_OTHER)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the last step."""
        self._switch(_OTHER)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give the totals to the loggers."""
        self._switch(_OTHER)
        report = self.report
        values = {
            "graphs/training_compilations": report.training_graphs,
            "graphs/host_syncs_per_step": report.host_syncs_per_step,
        }
        measured = {name: value for name, value in values.items() if value is not None}
        for logger in trainer.loggers:
            logger.log_metrics(measured, trainer.global_step)

    def _switch(self, cause: str) -> None:
        """Charge what happened since the last switch to the current cause."""
        for counter in self._counters:
            counter.attribute(self._cause)
        graphs, syncs = (counter.counts() for counter in self._counters)
        self.report.graph_compilations, self.report.host_syncs = graphs, syncs
        self._cause = cause
