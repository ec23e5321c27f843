"""Measures tokens and samples per second, the share of padding, and the share of the peak."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from lightning.fabric.utilities.throughput import get_available_flops
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ._clock import Between, TrainingClock
from ._model_flops import FlopsFormula, ModelFlops, num_replicas
from ._steps import is_log_step

__all__ = ["ThroughputReport", "TokenThroughput"]

_DTYPES = {"bf16": torch.bfloat16, "16": torch.float16, "32": torch.float32, "64": torch.float64}


@dataclass
class ThroughputReport:
    """Sums over the measured steps of all processes: this one's, times the number of replicas."""

    num_steps: int = 0
    num_tokens: int = 0
    """Without padding."""
    num_slots: int = 0
    """With padding: what the device computes on."""
    num_samples: int = 0
    seconds: float = 0.0
    num_flops: int | None = None
    """Floating-point operations of the model, padding included; None where nobody knows them."""
    peak_flops: int | None = None
    """The peak of all cards, in FLOP/s; None if it is not known, and on a simulated card."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second, padding not counted; 0 before anything was measured."""
        return self.num_tokens / self.seconds if self.seconds else 0.0

    @property
    def samples_per_s(self) -> float:
        """Samples a second; a packed row counts as the sequences in it."""
        return self.num_samples / self.seconds if self.seconds else 0.0

    @property
    def token_efficiency(self) -> float:
        """The share of the computed tokens that is not padding, 0 to 1."""
        return self.num_tokens / self.num_slots if self.num_slots else 0.0

    @property
    def flops_per_s(self) -> float | None:
        """Floating-point operations of the model a second, of all cards."""
        if self.num_flops is None:
            return None
        return self.num_flops / self.seconds if self.seconds else 0.0

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization: `flops_per_s` as a share of the peak, 0 to 1."""
        if self.flops_per_s is None or self.peak_flops is None:
            return None
        return self.flops_per_s / self.peak_flops


class TokenThroughput(Callback):
    """Measures training throughput from counts that the host already has.

    A batch is a mapping with `tokens_key`, a tensor of token ids, each element of which is a slot.
    It may have the integers `num_tokens` and `num_sequences`, which collating has counted. Without
    `num_tokens` every slot counts as a token, and without `num_sequences` every row as a sample.
    Ranks that compute on the same batch, as with tensor parallelism, count it once.

    The time is that of steps and of waiting for data. It leaves out warm-up, in which graphs are
    compiled, logging, validation and saving. It does not wait for the device, which may lag behind
    the host by the work that is queued, but at most since the last log step, in which an HPU's
    strategy reads the losses. With `stop_on_nan=off` logging is the first to wait, and then counts.
    Every `log_every_n_steps` the figures so far go to the loggers.

    MFU needs the operations of a batch: the matrix products of forward and backward, without those
    that activation checkpointing repeats. "measured" counts them in the first step of each shape of
    batch, up to 64 shapes; such a step is not timed. A simulated card has no MFU.

    Args:
        num_warmup_steps: optimizer steps to leave out at the start of a fit.
        tokens_key: name of the token ids in a batch.
        flops_per_batch: floating-point operations of the model for a batch of one replica: a
            number, a function of the batch, or "measured"; None takes
            `LightningModule.flops_per_batch`, as Lightning's `ThroughputMonitor` does, and reports
            no MFU where that is missing.

    Raises:
        ValueError: A number is negative, or the word is another.
    """

    def __init__(
        self,
        num_warmup_steps: int = 10,
        tokens_key: str = "input_ids",
        flops_per_batch: int | FlopsFormula | Literal["measured"] | None = None,
    ) -> None:
        if num_warmup_steps < 0:
            raise ValueError(f"num_warmup_steps must be 0 or more, but is {num_warmup_steps}.")
        self.num_warmup_steps = num_warmup_steps
        self.tokens_key = tokens_key
        self.report = ThroughputReport()
        self._flops = ModelFlops(flops_per_batch)
        self._clock = TrainingClock()
        self._first_step = 0
        self._logged_step = 0
        self._is_warm = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Resets all counts, since a resumed run warms up again."""
        self.report, self._clock = ThroughputReport(), TrainingClock()
        self._first_step = self._logged_step = trainer.global_step
        if self._flops.start(trainer, pl_module):
            dtype = _DTYPES.get(str(trainer.precision).partition("-")[0])
            if getattr(trainer.precision_plugin, "computes_in_fp8", False):
                dtype = torch.float8_e4m3fn
            peak = get_available_flops(trainer.strategy.root_device, dtype) if dtype else None
            self.report.peak_flops = peak and int(peak) * trainer.world_size
            self.report.num_flops = 0

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Starts the clock again after something that is not training."""
        self._is_warm = trainer.global_step >= self._first_step + self.num_warmup_steps
        self._clock.start_step(time.perf_counter())
        self._flops.start_step(batch)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Counts the batch and its time; logs in log steps."""
        counts = not self._flops.end_step() and self._is_warm
        self._clock.end_step(time.perf_counter(), counts=counts)
        if counts:
            self._count(batch, trainer)
        is_new = trainer.global_step != self._logged_step
        if is_new and is_log_step(trainer, trainer.global_step):
            self._clock.note(Between.LOGGING if _has_caught_up(trainer) else Between.MORE)
            if self.report.num_steps:
                self._logged_step = trainer.global_step
                self._log(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Counts the start of loaders as training time."""
        self._clock.note(Between.MORE)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stops the clock."""
        self._clock.note(Between.STANDSTILL)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Stops the clock."""
        self._clock.note(Between.STANDSTILL)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Discards the count of a step that was cut short."""
        self._flops.end_step(is_whole=False)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Discards the count of a step that has failed."""
        self._flops.end_step(is_whole=False)

    def _log(self, trainer: Trainer) -> None:
        names = ("tokens_per_s", "samples_per_s", "token_efficiency", "flops_per_s", "mfu")
        values = {f"throughput/{name}": getattr(self.report, name) for name in names}
        known = {name: value for name, value in values.items() if value is not None}
        for logger in trainer.loggers:
            logger.log_metrics(known, trainer.global_step - 1)

    def _count(self, batch: Any, trainer: Trainer) -> None:
        if not isinstance(batch, Mapping) or not isinstance(batch.get(self.tokens_key), Tensor):
            has = sorted(batch) if isinstance(batch, Mapping) else type(batch).__name__
            raise ValueError(
                f"TokenThroughput looks for a tensor {self.tokens_key!r} in each batch, which has "
                f"{has}. Name the token ids with tokens_key=..."
            )
        slots = batch[self.tokens_key]
        report, replicas = self.report, num_replicas(trainer)
        report.num_steps += 1
        report.seconds = self._clock.seconds
        report.num_slots += replicas * slots.numel()
        report.num_tokens += replicas * int(batch.get("num_tokens", slots.numel()))
        report.num_samples += replicas * int(batch.get("num_sequences", len(slots)))
        if report.num_flops is not None:
            flops = self._flops.of(batch)
            report.num_flops = None if flops is None else report.num_flops + replicas * flops


def _has_caught_up(trainer: Trainer) -> bool:
    """Returns whether the device has finished its work when a log step ends."""
    strategy: Any = trainer.strategy
    settings = getattr(strategy, "reliability", None)
    return strategy.root_device.type == "cpu" or bool(getattr(settings, "stop_on_nan", False))
