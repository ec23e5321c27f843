"""Which training steps end in a log step, as Lightning's own logging counts them."""

from __future__ import annotations

from lightning.pytorch import Trainer


def is_log_step(trainer: Trainer, step: int) -> bool:
    """Tells if metrics are read at the end of the optimizer step with this number, from 1 on."""
    every = int(trainer.log_every_n_steps)  # type: ignore[attr-defined]
    return every > 0 and step % every == 0
