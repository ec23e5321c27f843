"""Loading files without running what is in them, where Lightning and the vendor would.

What is loaded instead, and what is refused, is said in our room of checkpoints.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from lightning_gaudi._core.mirror import Family

from .apply import replaced, require, wrap

_OLD_KEYS = ("hparams", "module_arguments")
"""Where Lightning looks for hyperparameters besides (`CHECKPOINT_PAST_HPARAMS_KEYS`)."""


def patch_load(module: ModuleType, family: Family) -> None:
    """Loads tensors and plain data alone, where there is an HPU.

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
        return family.find("checkpoint.io").load_file(path, *args, **options)


def patch_instantiator(saving: ModuleType, family: Family) -> None:
    """Lets a checkpoint name no function but that of LightningCLI, as Lightning 2.6.6 does.

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
        from lightning_gaudi.reliability import trust

        if trust.trusted_by() is None:
            for key in (cls.CHECKPOINT_HYPER_PARAMS_KEY, *_OLD_KEYS):
                _check(_as_dict(checkpoint.get(key)), cls, trust.ADVICE)
        return original(cls, checkpoint, *args, **kwargs)


def _as_dict(hparams: Any) -> dict[Any, Any]:
    """What `dict.update` makes of them, which takes pairs too; nothing of what it does not."""
    try:
        return dict(hparams)
    except (TypeError, ValueError):
        return {}


def _check(hparams: dict[Any, Any], cls: type, advice: str) -> None:
    """Refuses hyperparameters that have something else called than LightningCLI's, for `cls`."""
    from lightning_gaudi._core.untrusted import printable

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
    """Makes the vendor's `torch.load` trust a file only if it is told to.

    Args:
        module: The vendor's, which has put a function of its own in its place in lazy mode.
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
        from lightning_gaudi.reliability.trust import torch_trusts_all

        if not args:
            if weights_only is None:
                weights_only = pickle_module is None and not torch_trusts_all()
            options["weights_only"] = weights_only
        return original(f, map_location, pickle_module, *args, **options)
