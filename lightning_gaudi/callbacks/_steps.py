"""Finds the training steps after which Lightning logs."""

from __future__ import annotations

from lightning.pytorch import Trainer


def is_log_step(trainer: Trainer, step: int) -> bool:
    """Returns whether metrics are read after the optimizer step of this number, from 1 on."""
    every = int(trainer.log_every_n_steps)  # type: ignore[attr-defined]
    return every > 0 and step % every == 0
