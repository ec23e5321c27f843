"""Fused attention: torch's function for it, and a name in transformers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .apply import enter, replace, require, wrap


def patch_sdpa(module: ModuleType, family: Any) -> None:
    """Have `F.scaled_dot_product_attention` ask the switch on the HPU.

    Args:
        module: The vendor's core, just imported: without it there is no HPU.
        family: Not used.
    """
    import torch
    from torch.jit import _builtins

    from lightning_gaudi.attention import switch

    require("fused-attention", _builtins, "_register_builtin")
    function = switch.scaled_dot_product_attention
    # TorchScript knows torch's functions by identity, and takes this one for the same.
    _builtins._register_builtin(function, "aten::scaled_dot_product_attention")
    replace("fused-attention", torch.nn.functional, "scaled_dot_product_attention", function)


def patch_transformers(module: ModuleType, family: Any) -> None:
    """Give transformers' registries the name, and have models that ignore them refuse it.

    Args:
        module: `transformers.modeling_utils`, just imported.
        family: Not used.
    """
    from lightning_gaudi.attention import models

    name = "transformers-attention"
    require(name, module, "ALL_ATTENTION_FUNCTIONS", "PreTrainedModel")
    _enter(name, module.ALL_ATTENTION_FUNCTIONS, models.attend)
    if importlib.util.find_spec("transformers.masking_utils") is not None:
        from transformers import masking_utils

        require(name, masking_utils, "ALL_MASK_ATTENTION_FUNCTIONS")
        _enter(name, masking_utils.ALL_MASK_ATTENTION_FUNCTIONS, models.make_mask)

    @wrap(name, module.PreTrainedModel, "__init__")
    def init(
        original: Callable[..., None], self: Any, config: Any, *args: Any, **kwargs: Any
    ) -> None:
        if getattr(config, "_attn_implementation", None) == models.NAME:
            models.check(type(self))
        original(self, config, *args, **kwargs)

    if hasattr(module.PreTrainedModel, "set_attn_implementation"):

        @wrap(name, module.PreTrainedModel, "set_attn_implementation")
        def set_attn_implementation(
            original: Callable[..., None], self: Any, attn_implementation: Any, **kwargs: Any
        ) -> None:
            if attn_implementation == models.NAME:
                models.check(type(self))
            original(self, attn_implementation, **kwargs)


def _enter(name: str, registry: Any, function: Callable[..., Any]) -> None:
    """Enter a function for all models; before 4.51 the registry is a plain dict."""
    from lightning_gaudi.attention import models

    enter(name, getattr(registry, "_global_mapping", registry), models.NAME, function)
