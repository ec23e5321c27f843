"""Where a fit goes on from: `lightning.pytorch.trainer.connectors.checkpoint_connector`."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from lightning_gaudi._core.mirror import Family

from .apply import wrap


def patch_resuming(module: ModuleType, family: Family) -> None:
    """Makes "last" mean the newest checkpoint, and replaces a damaged one by one that is not."""
    connector = module._CheckpointConnector

    @wrap("resuming", connector, "_parse_ckpt_path")
    def parse(
        original: Callable[..., Any], self: Any, state_fn: Any, ckpt_path: Any, **options: Any
    ) -> Any:
        self.newest_checkpoint = None
        if ckpt_path == "last" and _is_on_hpu(self.trainer, family):
            resuming = family.find("strategies.resuming")
            self.newest_checkpoint = resuming.newest_checkpoint(self.trainer)
        if self.newest_checkpoint is not None:
            return str(self.newest_checkpoint)
        return original(self, state_fn, ckpt_path, **options)

    @wrap("resuming", connector, "resume_start")
    def resume_start(
        original: Callable[..., None],
        self: Any,
        checkpoint_path: Any = None,
        *args: Any,
        **options: Any,
    ) -> None:
        is_fitting = getattr(self.trainer.state.fn, "value", None) == "fit"
        if not is_fitting or not _is_on_hpu(self.trainer, family):
            original(self, checkpoint_path, *args, **options)
            return
        newest = getattr(self, "newest_checkpoint", None)
        family.find("strategies.resuming").begin(
            self.trainer,
            lambda path: original(self, path, *args, **options),
            checkpoint_path,
            is_newest=newest is not None and str(newest) == str(checkpoint_path),
        )


def _is_on_hpu(trainer: Any, family: Family) -> bool:
    ours = family.loaded("accelerator", "HPUAccelerator")
    return ours is not None and isinstance(trainer.accelerator, ours)
