"""Logs what the memory of a card holds, by category, now and at the peak."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning_utilities.core.rank_zero import rank_zero_info

from lightning_gaudi._core import vendor
from lightning_gaudi._core.memory.report import by_category

from ._steps import is_log_step

__all__ = ["MemoryMonitor"]

_MIB = 2**20


class MemoryMonitor(Callback):
    """Logs in log steps what holds the memory of this rank's card, in bytes.

    `memory/weights`, `gradients`, `optimizer_state`, `communication_buckets`, `gathered_weights`,
    `KV_cache` and `latents` are the sizes at the end of the step, and `rest` is all other memory in
    use, such as the batch. `used` is their sum, `peak` the most that was in use since the process
    began or since the vendor's `reset_peak_memory_stats`, and `limit` the memory of the card.

    `peak_rest` is the peak without what stays from step to step, which in a training step are the
    activations. It uses the present size of the gradients, which may differ at the peak.

    Nothing is computed, copied or waited for. On devices other than an HPU it does nothing.
    """

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Logs in log steps, after the last batch that is accumulated."""
        strategy: Any = trainer.strategy
        is_due = is_log_step(trainer, trainer.global_step)
        if not is_due or strategy.root_device.type != "hpu" or not trainer.loggers:
            return
        if trainer.fit_loop._should_accumulate():
            return
        values = {f"memory/{name}": float(size) for name, size in memory_of(trainer).items()}
        for logger in trainer.loggers:
            logger.log_metrics(values, trainer.global_step - 1)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Shows what the card of rank zero held, and its peak."""
        if trainer.strategy.root_device.type != "hpu":
            return
        sizes = memory_of(trainer)
        peak, limit, peak_rest = (sizes.pop(name) for name in ("peak", "limit", "peak_rest"))
        held = {name: size for name, size in sizes.items() if size and name != "used"}
        held["rest"] = peak_rest
        told = (f"{name.replace('_', ' ')} {size / _MIB:.1f} MiB" for name, size in held.items())
        rank_zero_info(
            f"MemoryMonitor: at most {peak / _MIB:.1f} of {limit / _MIB:.0f} MiB in use at a time: "
            f"{', '.join(told)}."
        )


def memory_of(trainer: Trainer) -> dict[str, int]:
    """Returns bytes of this rank's card by category; names as those of `MemoryMonitor`."""
    strategy: Any = trainer.strategy
    sizes = by_category(strategy.model, strategy.optimizers)
    stays = sum(sizes.values())
    stats = vendor.memory_stats()
    return {
        **{name.replace(" ", "_"): size for name, size in sizes.items()},
        "rest": max(0, stats["InUse"] - stays),
        "used": stats["InUse"],
        "peak": stats["MaxInUse"],
        "peak_rest": max(0, stats["MaxInUse"] - stays),
        "limit": stats["Limit"],
    }
