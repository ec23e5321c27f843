"""Patches for resuming a fit, for recording what it saves, and for loading files.

Files are loaded without running what is in them, where Lightning and the vendor would run it. The
package `checkpoint` decides what is loaded and what is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from lightning_gaudi._core.mirror import Family

from .apply import replaced, require, wrap


def patch_resuming(module: ModuleType, family: Family) -> None:
    """Makes "last" mean the newest checkpoint, and replaces a damaged one by a valid one."""
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


_LOADING, _SAVING = "auto-resume", "auto-resume-saving"


def patch_loading(module: ModuleType, family: Family) -> None:
    """Lets `AutoResume` choose the checkpoint of a fit once its ranks are connected."""
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


_OLD_KEYS = ("hparams", "module_arguments")
"""Further keys in which Lightning looks for hyperparameters (`CHECKPOINT_PAST_HPARAMS_KEYS`)."""


def patch_load(module: ModuleType, family: Family) -> None:
    """Loads only tensors and plain data if there is an HPU.

    Args:
        module: Lightning's, of `load_from_checkpoint` or of its `TorchCheckpointIO`.
        family: Lightning's and ours.
    """
    is_trainers = module.__name__.startswith(family.trainer)

    @wrap("load-from-checkpoint" if is_trainers else "checkpoint-loading", module, "pl_load")
    def load(original: Callable[..., Any], path: Any, *args: Any, **options: Any) -> Any:
        from lightning_gaudi._core import vendor

        if not vendor.is_available():
            return original(path, *args, **options)
        return family.find("checkpoint.files").load_file(path, *args, **options)


def patch_instantiator(saving: ModuleType, family: Family) -> None:
    """Refuses checkpoints that name a function other than LightningCLI's, as Lightning 2.6.6 does.

    Args:
        saving: Lightning's, of `load_from_checkpoint`.
        family: Lightning's and ours.
    """
    if hasattr(saving, "_ALLOWED_INSTANTIATORS"):
        return

    @wrap("instantiator", saving, "_load_state")
    def load_state(
        original: Callable[..., Any], cls: Any, checkpoint: Any, *args: Any, **kwargs: Any
    ) -> Any:
        from lightning_gaudi.reliability import settings

        if settings.trusted_by() is None:
            for key in (cls.CHECKPOINT_HYPER_PARAMS_KEY, *_OLD_KEYS):
                _check(_as_dict(checkpoint.get(key)), cls, settings.ADVICE)
        return original(cls, checkpoint, *args, **kwargs)


def _as_dict(hparams: Any) -> dict[Any, Any]:
    """Returns hyperparameters as `dict.update` would take them; empty if it would not."""
    try:
        return dict(hparams)
    except (TypeError, ValueError):
        return {}


def _check(hparams: dict[Any, Any], cls: type, advice: str) -> None:
    """Refuses hyperparameters that would call something other than LightningCLI's for `cls`."""
    from lightning_gaudi.untrusted import printable

    name = hparams.get("_instantiator")
    if name is None:
        return
    if name not in (
        "lightning.pytorch.cli.instantiate_module",
        "pytorch_lightning.cli.instantiate_module",
    ):
        raise ValueError(
            "The checkpoint was not loaded: its hyperparameter "
            f"_instantiator={printable(repr(name), max_chars=200)} would have that "
            "called, and only LightningCLI's own may be. If you trust who made it, "
            f"{advice}."
        )
    path = hparams.get("_class_path")
    module, _, kind = str(path).rpartition(".")
    found = getattr(sys.modules.get(module), kind, None)
    if path is not None and not (isinstance(found, type) and issubclass(found, cls)):
        raise ValueError(
            "The checkpoint was not loaded: its hyperparameter "
            f"_class_path={printable(repr(path), max_chars=200)} is no class derived from "
            f"{cls.__name__} that has been imported. Import its module first."
        )


def patch_conversion(module: ModuleType, family: Family) -> None:
    """Keeps Lightning's tool for DeepSpeed's checkpoints from running code, if there is an HPU.

    Args:
        module: Lightning's with the tool.
        family: Lightning's and ours.
    """

    @wrap("shards-to-file", module, "convert_zero_checkpoint_to_fp32_state_dict")
    def convert(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        import torch

        from lightning_gaudi._core import vendor

        if not vendor.is_available():
            return original(*args, **kwargs)
        load = family.find("checkpoint.restricted").instead_of(torch.load)
        with replaced("deepspeed-loading", torch, load=load):
            return original(*args, **kwargs)


def patch_lazy_load(module: ModuleType, family: Any) -> None:
    """Makes the vendor's `torch.load` of lazy mode trust a file only on request.

    Args:
        module: The vendor's core, which replaces `torch.load` in lazy mode.
        family: Not used.

    Source: Intel Gaudi PyTorch bridge 1.24.0, `core/torch_overwrites.py`.
    """
    import torch

    require("lazy-load", torch, "load")
    if not hasattr(torch.load, "__wrapped__"):
        return

    @wrap("lazy-load", torch, "load")
    def load(
        original: Callable[..., Any],
        f: Any,
        map_location: Any = None,
        pickle_module: Any = None,
        *args: Any,
        weights_only: bool | None = None,
        **options: Any,
    ) -> Any:
        from lightning_gaudi.reliability.settings import torch_trusts_all

        if not args:
            if weights_only is None:
                weights_only = pickle_module is None and not torch_trusts_all()
            options["weights_only"] = weights_only
        return original(f, map_location, pickle_module, *args, **options)
