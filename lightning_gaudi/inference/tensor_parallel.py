"""Cuts a model up for several cards, each of which computes a part of every layer.

A token costs two all-reduces for each layer, one for the embedding, and one all-gather for the
logits.

B batch, H heads, S keys.
"""

from __future__ import annotations

import copy
import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from lightning_gaudi._core import vendor

from .parallel_layers import PARTS, Part
from .plans import plan


def parallelize(model: Any, mesh: DeviceMesh) -> None:
    """Cuts a model up for the cards of a mesh, in place; its weights no longer need gradients.

    Every rank gets the whole logits. A token costs 2 x layers + 1 all-reduces and 1 all-gather.

    Args:
        model: A decoder-only model of transformers, best on meta and loaded afterwards with
            `load_weights`. If it has its weights already, each card keeps its part of them.
        mesh: A mesh of one axis, such as `self.device_mesh["tensor_parallel"]` of a
            LightningModule under `ModelParallelStrategy`.

    Raises:
        ValueError: The mesh has several axes, there is no plan for the model, or its heads or a
            width are no multiple of the cards.
    """
    if mesh.ndim != 1:
        axes = mesh.mesh_dim_names or range(mesh.ndim)
        raise ValueError(
            f"parallelize takes a mesh of one axis, and this one has {mesh.ndim}: "
            f"{', '.join(map(str, axes))}. Pass one of them, as mesh['tensor_parallel']."
        )
    model.tie_weights()  # transformers 5.0 does not do so on meta
    found = plan(model, mesh.size())
    _refuse(model)
    made: dict[nn.Parameter, nn.Parameter] = {}
    for name, (style, layouts) in found.items():
        layer = PARTS[style](model.get_submodule(name), layouts, mesh, made)
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, layer)
    model.requires_grad_(False)
    _FINISH.get(model.config.model_type, _leave)(model, mesh)


def num_cards(model: nn.Module) -> int:
    """Returns the number of cards that a model is cut up for; 1 if it is whole."""
    parts = [each.mesh.size() for each in model.modules() if isinstance(each, Part)]
    return parts[0] if parts else 1


def cache_config(model: nn.Module) -> Any:
    """Returns a configuration with which a cache holds the keys and values of this card."""
    config: Any = model.config
    if num_cards(model) == 1:
        return config
    config = copy.deepcopy(config)
    num_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    config.num_key_value_heads = num_heads // num_cards(model)
    return config


def check_capture(model: nn.Module) -> None:
    """Refuses to capture a graph of a model that is cut up, if collectives would end the graph.

    Call it in lazy mode, before the first capture. On a card, the vendor's package reads the
    variable when it is loaded.

    Raises:
        ValueError: The model is cut up, and collectives would end the graph.
    """
    if num_cards(model) > 1 and not vendor.has_lazy_collectives():
        raise ValueError(
            f"An HPU graph of {type(model).__name__} on {num_cards(model)} cards was asked for, but"
            " collectives are not part of graphs in this process. Set "
            "PT_HPU_ENABLE_LAZY_COLLECTIVES=1 before it starts, or pass engine='none'."
        )


def _leave(model: Any, mesh: DeviceMesh) -> None:
    pass


def _refuse(model: Any) -> None:
    config = model.config
    if getattr(config, "slow_but_exact", False) and config.pretraining_tp > 1:
        raise ValueError(
            f"{type(model).__name__} has slow_but_exact=True and pretraining_tp="
            f"{config.pretraining_tp}, which cuts whole weights in its own way. Set "
            "slow_but_exact=False in the configuration."
        )
    if getattr(config, "add_cross_attention", False):
        raise ValueError(
            f"{type(model).__name__} has add_cross_attention=True, and only decoders by themselves "
            "have a plan. Run the model on one card."
        )


def _finish_gpt2(model: Any, mesh: DeviceMesh) -> None:
    for block in model.base_model.h:
        attention = block.attn
        attention.num_heads //= mesh.size()
        attention.embed_dim //= mesh.size()
        attention.split_size //= mesh.size()


def _finish_bloom(model: Any, mesh: DeviceMesh) -> None:
    base = model.base_model
    for block in base.h:
        block.self_attention.num_heads //= mesh.size()
    # The slopes are computed for all heads, and then cut: they depend on the number of heads, if
    # that is no power of two.
    base.build_alibi_tensor = partial(_alibi_part, base.build_alibi_tensor, mesh)
    if hasattr(sys.modules[type(base).__module__], "_get_alibi_slopes"):
        base.register_forward_pre_hook(_with_mask, with_kwargs=True)


def _alibi_part(
    build: Any, mesh: DeviceMesh, attention_mask: Tensor, num_heads: int, dtype: torch.dtype
) -> Tensor:
    """Returns (B * H / N, 1, S), the ALiBi of this card's heads."""
    alibi: Tensor = build(attention_mask, num_heads, dtype=dtype)
    local = num_heads // mesh.size()
    start = mesh.get_local_rank() * local
    by_head = alibi.view(-1, num_heads, 1, alibi.shape[-1])
    return by_head[:, start : start + local].flatten(0, 1)


def _with_mask(
    base: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Adds a mask, since without one transformers from 5.23 on makes ALiBi for all heads itself."""
    if len(args) > 2 or kwargs.get("attention_mask") is not None:
        return args, kwargs
    given = [*args[:1], kwargs.get("input_ids"), kwargs.get("inputs_embeds")]
    tokens = next(each for each in given if each is not None)
    batch_size, num_keys = tokens.shape[:2]
    # The argument is named "cache" from transformers 5.24 on.
    cache = args[1] if len(args) > 1 else kwargs.get("cache", kwargs.get("past_key_values"))
    if cache is not None:
        num_keys = cache.get_mask_sizes(num_keys, 0)[0]
    mask = torch.ones(batch_size, num_keys, dtype=torch.long, device=tokens.device)
    return args, {**kwargs, "attention_mask": mask}


_FINISH = {"bloom": _finish_bloom, "gpt2": _finish_gpt2}
"""Functions by model type that set the number of heads where a model keeps it beside its layers."""
