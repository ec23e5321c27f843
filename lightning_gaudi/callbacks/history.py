"""Keeps the curves of a run: training losses as means over log intervals, validation metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lightning_gaudi._core import vendor

from ._steps import is_log_step

__all__ = ["Curve", "MetricHistory"]

Curve = list[tuple[int, float]]
"""(optimizer steps done, value), in order."""

_MAX_LOOSE = 64


class MetricHistory(Callback):
    """Logs the losses of `training_step` as means over the log interval, and keeps all curves.

    It logs as `train/NAME` each value of the returned mapping whose name ends in `_loss`, or `loss`
    if there is none; they must be detached. Between two log steps they stay on the device, and
    nothing is computed, copied or waited for. In a log step all of them are copied to the host at
    once. The mean is that of the batches of this process, with equal weights.

    Checkpoints hold the curves and the interval that has begun, so that a resumed run logs what an
    uninterrupted one would.

    Args:
        progress_loss: the loss that the progress bar shows.

    Attributes:
        training: curves by name, `train/learning_rate` too.
        validation: curves of what validation logs.
    """

    def __init__(self, progress_loss: str = "loss") -> None:
        self.progress_loss = progress_loss
        self.training: dict[str, Curve] = {}
        self.validation: dict[str, Curve] = {}
        self._interval = _Interval()
        self._logged_step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forgets an earlier fit of the same process; a resumed one keeps what was loaded."""
        if trainer.global_step == 0:
            self.training, self.validation, self._interval = {}, {}, _Interval()
        self._logged_step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keeps the losses, and reads them in log steps only."""
        if not trainer.log_every_n_steps:  # type: ignore[attr-defined]
            return
        self._interval.add(_losses(outputs))
        step = trainer.global_step
        if step == self._logged_step or not is_log_step(trainer, step):
            return
        self._logged_step = step
        values = {f"train/{name}": mean for name, mean in self._interval.take().items()}
        if trainer.optimizers:
            values["train/learning_rate"] = trainer.optimizers[0].param_groups[0]["lr"]
        for logger in trainer.loggers:
            logger.log_metrics(values, step - 1)
        _extend(self.training, step, values)
        shown = f"train/{self.progress_loss}"
        if shown in values:
            trainer.progress_bar_metrics[self.progress_loss] = values[shown]

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keeps the metrics of a fit's validations."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
            _extend(self.validation, trainer.global_step, metrics)

    def state_dict(self) -> dict[str, Any]:
        """Returns all curves and the losses of the interval; waits for the device."""
        return {
            "training": self.training,
            "validation": self.validation,
            "interval": self._interval.values(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues the curves of the run that is resumed."""
        self.training, self.validation = state_dict["training"], state_dict["validation"]
        self._interval = _Interval(state_dict["interval"])


class _Interval:
    """Losses of some steps, which stay on the device until all are read at once."""

    def __init__(self, read: Mapping[str, list[float]] | None = None) -> None:
        self._read: dict[str, list[float]] = {name: [*each] for name, each in (read or {}).items()}
        self._names: tuple[str, ...] = ()
        self._loose: list[Tensor] = []
        self._rows: list[Tensor] = []  # [up to 64 steps, names] each

    def add(self, losses: Mapping[str, Tensor]) -> None:
        if losses and tuple(losses) != self._names:
            self.values()
            self._names = tuple(losses)
        self._loose.extend(losses.values())
        if len(self._loose) >= _MAX_LOOSE * max(1, len(self._names)):
            self._join()

    def _join(self) -> None:
        """Joins many tensors to one, since the inputs of a graph are limited in number."""
        if self._loose:
            self._rows.append(torch.stack(self._loose).float().view(-1, len(self._names)))
            self._loose = []
            if self._rows[-1].device.type == "hpu":
                # A graph of its own, so that the graph of the next step stays the same.
                vendor.mark_step()

    def values(self) -> dict[str, list[float]]:
        """Reads and returns the losses of each step since the last `take`, by name."""
        self._join()
        if self._rows:
            rows = torch.cat(self._rows) if len(self._rows) > 1 else self._rows[0]
            columns = rows.cpu().T.tolist()
            for name, column in zip(self._names, columns, strict=True):
                self._read.setdefault(name, []).extend(column)
            self._rows = []
        return self._read

    def take(self) -> dict[str, float]:
        """Returns the means, and begins a new interval."""
        means = {name: sum(column) / len(column) for name, column in self.values().items()}
        self._read = {}
        return means


def _losses(outputs: Any) -> dict[str, Tensor]:
    if isinstance(outputs, Tensor):
        return {"loss": outputs.detach()}
    if not isinstance(outputs, Mapping):
        return {}
    losses = {name: value for name, value in outputs.items() if name.endswith("_loss")}
    return losses or {"loss": outputs["loss"].detach()}


def _extend(curves: dict[str, Curve], step: int, values: Mapping[str, float]) -> None:
    for name, value in values.items():
        curves.setdefault(name, []).append((step, float(value)))
