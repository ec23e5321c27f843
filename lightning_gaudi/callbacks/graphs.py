"""Counts compilations, host synchronizations, launches and CPU fallbacks by their causes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning_utilities.core.rank_zero import rank_zero_info

from lightning_gaudi._core import vendor
from lightning_gaudi._core.recompilations import MAX_CAUSES, Recompilations

from ._steps import is_log_step

__all__ = ["GraphMonitor", "GraphReport"]

_METRICS = ("graph_compilation", "host_sync", "launch", "cpu_fallback")
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
    launches: dict[str, int] | None = None
    """How often the device was given something to run, which a Gaudi does not count."""
    cpu_fallbacks: dict[str, int] | None = None
    """Operators that the device sent to the CPU."""
    recompilations: list[str] | None = None
    """The first 32 graphs of training steps that were compiled again for other shapes, such as
    "step 12: input 0: [8, 113] was [8, 128]"; a Gaudi does not report them."""

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

    @property
    def launches_per_step(self) -> float | None:
        """Launches of a training step, log steps included."""
        return self._per_training_step(self.launches)

    @property
    def cpu_fallbacks_per_step(self) -> float | None:
        """Operators of a training step that ran on the CPU instead, log steps included."""
        return self._per_training_step(self.cpu_fallbacks)

    def _per_training_step(self, counts: dict[str, int] | None) -> float | None:
        if counts is None:
            return None
        return (counts[_STEP] + counts[_LOG_STEP]) / max(1, self.num_steps + self.num_log_steps)


@dataclass
class _Counter:
    """A metric of the device, with its last total and its growth by cause."""

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
    """Counts compilations, host synchronizations, launches and CPU fallbacks of a fit by cause.

    A step is charged with everything from its start to the start of the next one, including the
    loggers and the progress bar, which read metrics after the callbacks. A fast training step
    compiles nothing after the first ones and never waits for the device. In eager mode, fused
    operators and `torch.compile` reduce its launches.

    Attributes:
        report: the counts so far; final after the fit.
    """

    def __init__(self) -> None:
        self.report = GraphReport()
        self._counters = [_Counter(name) for name in _METRICS]
        self._recompilations: Recompilations | None = None
        self._cause = _OTHER

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts counting."""
        self.report = GraphReport()
        self._cause = _OTHER
        is_hpu = trainer.strategy.root_device.type == "hpu"
        for counter in self._counters:
            counter.start(is_hpu)
        self._recompilations = Recompilations() if is_hpu else None
        if self._recompilations is not None and self._recompilations.is_told:
            self.report.recompilations = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Charges the costs, from here on, to this step."""
        reads_metrics = is_log_step(trainer, trainer.global_step + 1)
        self._switch(_LOG_STEP if reads_metrics else _STEP)
        if reads_metrics:
            self.report.num_log_steps += 1
        else:
            self.report.num_steps += 1

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Charges the costs, from here on, to validation."""
        self._switch(_VALIDATION)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Charges what follows, such as saving, to "other"."""
        self._switch(_OTHER)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Charges the costs, from here on, to the checkpoint."""
        self._switch(_OTHER)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Closes the last step."""
        self._switch(_OTHER)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Closes the last step, since a checkpoint may be saved next."""
        if trainer.state.fn == "fit":
            self._switch(_OTHER)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Passes the totals to the loggers, and shows them."""
        self._switch(_OTHER)
        report = self.report
        values = {
            "graphs/training_compilations": report.training_graphs,
            "graphs/host_syncs_per_step": report.host_syncs_per_step,
            "graphs/launches_per_step": report.launches_per_step,
            "graphs/cpu_fallbacks_per_step": report.cpu_fallbacks_per_step,
        }
        measured = {name: value for name, value in values.items() if value is not None}
        for logger in trainer.loggers:
            logger.log_metrics(measured, trainer.global_step)
        if measured:
            told = (
                f"{name.partition('/')[2].replace('_', ' ')} {each:g}"
                for name, each in measured.items()
            )
            rank_zero_info(f"GraphMonitor of {trainer.global_step} steps: {', '.join(told)}.")

    def _switch(self, cause: str) -> None:
        """Charges what happened since the last switch to the current cause."""
        report = self.report
        num_compiled = report.graph_compilations and sum(report.graph_compilations.values())
        for counter in self._counters:
            counter.attribute(self._cause)
        counts = [counter.counts() for counter in self._counters]
        report.graph_compilations, report.host_syncs, report.launches, report.cpu_fallbacks = counts
        if counts[0] is not None and sum(counts[0].values()) != num_compiled:
            self._note_recompilations()
        self._cause = cause

    def _note_recompilations(self) -> None:
        causes = self._recompilations.new() if self._recompilations is not None else []
        kept = self.report.recompilations
        if kept is not None and self._cause in (_STEP, _LOG_STEP):
            step = self.report.num_steps + self.report.num_log_steps
            kept.extend(f"step {step}: {cause}" for cause in causes[: MAX_CAUSES - len(kept)])
