"""Patches for fused attention: torch's function, and a name in transformers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .apply import add, enter, replace, require, wrap


def patch_sdpa(module: ModuleType, family: Any) -> None:
    """Makes `F.scaled_dot_product_attention` fused on the HPU if the switch is on.

    Args:
        module: The vendor's core, just imported.
        family: Not used.
    """
    import torch
    from torch.jit import _builtins

    from lightning_gaudi.attention import switch

    require("fused-attention", _builtins, "_register_builtin")
    function = switch.scaled_dot_product_attention
    # TorchScript recognizes torch's functions by identity. This makes it take ours for the
    # original.
    _builtins._register_builtin(function, "aten::scaled_dot_product_attention")
    replace("fused-attention", torch.nn.functional, "scaled_dot_product_attention", function)


def patch_transformers(module: ModuleType, family: Any) -> None:
    """Enters the name in transformers' registries, and makes models that ignore them refuse it.

    Args:
        module: `transformers.modeling_utils`, just imported.
        family: Not used.
    """
    from lightning_gaudi.attention import kernel, models

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
        if getattr(config, "_attn_implementation", None) == kernel.NAME:
            models.check(type(self))
        original(self, config, *args, **kwargs)

    if hasattr(module.PreTrainedModel, "set_attn_implementation"):

        @wrap(name, module.PreTrainedModel, "set_attn_implementation")
        def set_attn_implementation(
            original: Callable[..., None], self: Any, attn_implementation: Any, **kwargs: Any
        ) -> None:
            if attn_implementation == kernel.NAME:
                models.check(type(self))
            original(self, attn_implementation, **kwargs)


def patch_bloom(module: ModuleType, family: Any) -> None:
    """Makes Bloom's attention look for the name in its configuration.

    Args:
        module: `transformers.models.bloom.modeling_bloom`, just imported.
        family: Not used.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from lightning_gaudi.attention import bloom

    name = "bloom-attention"
    require(name, module, "BloomPreTrainedModel")

    @wrap(name, module.BloomAttention, "__init__")
    def init(
        original: Callable[..., None], self: Any, config: Any, *args: Any, **kwargs: Any
    ) -> None:
        original(self, config, *args, **kwargs)
        self.config = config

    @wrap(name, module.BloomAttention, "forward")
    def forward(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        if bloom.is_asked_for(self):
            return bloom.forward(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    # `models.check` takes a module with this name for one that looks its attention up.
    add(name, module, "ALL_ATTENTION_FUNCTIONS", ALL_ATTENTION_FUNCTIONS)
    _accept(name, module.BloomPreTrainedModel)


def _accept(name: str, model: type) -> None:
    """Makes a class of models accept the name, at construction and later."""
    from lightning_gaudi.attention import kernel

    if hasattr(model, "_can_set_attn_implementation"):
        add(name, model, "_can_set_attn_implementation", classmethod(lambda cls: True))
    if hasattr(model, "get_correct_attn_implementation"):
        # transformers 5 refuses names with "sdpa" for models that do not support SDPA.
        @wrap(name, model, "get_correct_attn_implementation")
        def get(original: Callable[..., str], self: Any, wanted: Any, *args: Any, **kw: Any) -> str:
            return kernel.NAME if wanted == kernel.NAME else original(self, wanted, *args, **kw)


def _enter(name: str, registry: Any, function: Callable[..., Any]) -> None:
    """Enters a function for all models; before 4.51 the registry is a plain dict."""
    from lightning_gaudi.attention import kernel

    enter(name, getattr(registry, "_global_mapping", registry), kernel.NAME, function)
