"""Tokens and samples a second, and the share of tokens that is not padding."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ._steps import is_log_step

__all__ = ["ThroughputReport", "TokenThroughput"]


@dataclass
class ThroughputReport:
    """Sums over the measured steps of all processes."""

    num_steps: int = 0
    num_tokens: int = 0
    """Without padding."""
    num_slots: int = 0
    """With padding: what the device computes on."""
    num_samples: int = 0
    seconds: float = 0.0

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


class TokenThroughput(Callback):
    """Measure training throughput, from counts that the host already has.

    A batch is a mapping with `tokens_key`, its tensor of token ids (every element is a slot), and
    may have `num_tokens` and `num_sequences`, integers made when it was collated. Without
    `num_tokens` every slot counts as a token; without `num_sequences` every row is a sample.

    The clock runs from the end of one step to the end of the next, waiting for data included; it
    stands still in warm-up (where graphs are compiled), in validation and while a checkpoint is
    saved. The device may lag behind the host by what is queued, never by more than since the last
    log step. Every `log_every_n_steps` the figures so far go to the loggers.

    Args:
        num_warmup_steps: optimizer steps to leave out at the start of a fit.
        tokens_key: name of the token ids in a batch.
    """

    def __init__(self, num_warmup_steps: int = 10, tokens_key: str = "input_ids") -> None:
        if num_warmup_steps < 0:
            raise ValueError(f"num_warmup_steps must be 0 or more, but is {num_warmup_steps}.")
        self.num_warmup_steps = num_warmup_steps
        self.tokens_key = tokens_key
        self.report = ThroughputReport()
        self._first_step = 0
        self._last: float | None = None
        self._logged_step = 0
        self._is_warm = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin anew: a resumed run warms up again."""
        self.report = ThroughputReport()
        self._first_step = self._logged_step = trainer.global_step
        self._last = None

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Start the clock again after something that is not training."""
        self._is_warm = trainer.global_step >= self._first_step + self.num_warmup_steps
        if self._last is None:
            self._last = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the batch and its time; log in log steps."""
        now = time.perf_counter()
        if self._is_warm:
            self._count(batch, now - (now if self._last is None else self._last), trainer)
        self._last = now
        is_new = trainer.global_step != self._logged_step
        if is_new and self.report.num_steps and is_log_step(trainer, trainer.global_step):
            self._logged_step = trainer.global_step
            names = ("tokens_per_s", "samples_per_s", "token_efficiency")
            values = {f"throughput/{name}": getattr(self.report, name) for name in names}
            for logger in trainer.loggers:
                logger.log_metrics(values, trainer.global_step - 1)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock."""
        self._last = None

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Stop the clock."""
        self._last = None

    def _count(self, batch: Any, seconds: float, trainer: Trainer) -> None:
        if not isinstance(batch, Mapping) or not isinstance(batch.get(self.tokens_key), Tensor):
            has = sorted(batch) if isinstance(batch, Mapping) else type(batch).__name__
            raise ValueError(
                f"TokenThroughput looks for a tensor {self.tokens_key!r} in each batch, which has "
                f"{has}. Name the token ids with tokens_key=..."
            )
        slots = batch[self.tokens_key]
        report, ranks = self.report, trainer.world_size
        report.num_steps += 1
        report.seconds += seconds
        report.num_slots += ranks * slots.numel()
        report.num_tokens += ranks * int(batch.get("num_tokens", slots.numel()))
        report.num_samples += ranks * int(batch.get("num_sequences", len(slots)))
