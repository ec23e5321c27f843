"""What a fit begins with, and what it saves, is known where it may be started again."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from lightning_gaudi._core.mirror import Family

from .apply import require, wrap

_LOADING, _SAVING = "auto-resume", "auto-resume-saving"


def patch_loading(module: ModuleType, family: Family) -> None:
    """Asks which checkpoint a fit begins with, now that its ranks are connected."""
    require(_LOADING, module, "_CheckpointConnector")
    require(_LOADING, module._CheckpointConnector, "_hpc_resume_path")

    @wrap(_LOADING, module._CheckpointConnector, "_restore_modules_and_callbacks")
    def restore(
        original: Callable[..., None],
        connector: Any,
        checkpoint_path: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if _is_ours(connector.trainer, family):
            auto_resume = connector.trainer.strategy.auto_resume
            checkpoint_path = auto_resume.choose_checkpoint(connector.trainer, checkpoint_path)
        original(connector, checkpoint_path, *args, **kwargs)


def patch_saving(module: ModuleType, family: Family) -> None:
    """Records what a fit saves."""
    require(_SAVING, module, "Trainer")

    @wrap(_SAVING, module.Trainer, "save_checkpoint")
    def save_checkpoint(
        original: Callable[..., None], trainer: Any, filepath: Any, *args: Any, **kwargs: Any
    ) -> None:
        if not _is_ours(trainer, family):
            original(trainer, filepath, *args, **kwargs)
            return
        weights_only = bool(args[0] if args else kwargs.get("weights_only"))
        with trainer.strategy.auto_resume.noting(filepath, weights_only=weights_only):
            original(trainer, filepath, *args, **kwargs)


def _is_ours(trainer: Any, family: Family) -> bool:
    kind = family.loaded("strategies.base", "HPUStrategy")
    return kind is not None and isinstance(trainer.strategy, kind)
