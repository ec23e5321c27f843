"""Loads whole weights into a model that DeepSpeed holds, sharded or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch._utils import _unflatten_dense_tensors
from torch.nn import Module

from .. import library
from ..engine.lifecycle import holds_zero3_shards
from .consolidate import Weights


def load_weights(engine: Any, weights: Mapping[str, Any], *, strict: bool) -> None:
    """Loads a state dict into the model of an engine, and into its optimizer's master weights.

    Under ZeRO-3 a card holds one layer at a time beside its shard. All ranks call it.

    Args:
        engine: DeepSpeed's, which trains or evaluates.
        weights: The whole model's, with the same values on all ranks; see `torch.nn.Module`.
        strict: Whether its names must be those of the model.

    Raises:
        RuntimeError: They are not, or a shape is another one.
    """
    module: Module = engine.module
    if holds_zero3_shards(module.parameters()):
        _load_layers(module, weights, strict=strict)
    else:
        module.load_state_dict(weights, strict=strict)
    # Lightning does not update the master weights, so the first step would restore the old weights
    # (2.5.6 to 2.6.6, `_restore_zero_state`).
    if hasattr(engine.optimizer, "refresh_fp32_params"):
        engine.optimizer.refresh_fp32_params()
    _load_masters(module, weights)
    _load_whole_masters(engine, weights)


def _load_layers(module: Module, weights: Mapping[str, Any], *, strict: bool) -> None:
    """Does what `module.load_state_dict(weights)` does, but gathers one layer at a time."""
    gathered = library.load().zero.GatheredParameters
    found = Weights(weights.data if isinstance(weights, Weights) else dict(weights))
    details: Mapping[str, Any] = getattr(weights, "_metadata", {})
    faults: tuple[list[str], list[str], list[str]] = ([], [], [])
    for name, layer in module.named_modules():
        prefix = f"{name}." if name else ""
        with gathered([*layer.parameters(recurse=False)], modifier_rank=0):
            layer._load_from_state_dict(
                found,
                prefix,
                details.get(name, {}),
                True,
                *faults,
            )
    missing, unexpected, errors = faults
    unexpected = sorted({*found} - {*module.state_dict()} | {*unexpected})
    if strict and missing:
        errors.append(f"Missing keys: {', '.join(missing)}.")
    if strict and unexpected:
        errors.append(f"Unexpected keys: {', '.join(unexpected)}.")
    if errors:
        raise RuntimeError(
            f"The checkpoint's weights are not those of {type(module).__name__}: {' '.join(errors)}"
        )


def _load_masters(module: Module, weights: Mapping[str, Any]) -> None:
    """Loads the optimizer's master weights in fp32; the model's own may be less precise."""
    from deepspeed.utils import safe_set_full_fp32_param, safe_set_local_fp32_param

    for name, parameter in module.named_parameters():
        if not parameter.requires_grad or name not in weights:
            continue
        if hasattr(parameter, "_z3_optimizer"):
            # DeepSpeed's function for the whole parameter fails if a shard ends with padding
            # (deepspeed 0.19.8, `set_full_hp_param`). Use it once it does not.
            safe_set_local_fp32_param(parameter, _shard(parameter, weights[name].float()))
        elif hasattr(parameter, "_hp_mapping"):
            safe_set_full_fp32_param(parameter, weights[name].float())


def _load_whole_masters(engine: Any, weights: Mapping[str, Any]) -> None:
    """Loads the master weights of stage 0 in half precision, of which each rank has all."""
    optimizer, names = engine.optimizer, {}
    for name, parameter in engine.module.named_parameters():
        names[parameter] = name
    masters = getattr(optimizer, "fp32_groups", None)
    if masters is None:
        flat = getattr(optimizer, "fp32_groups_flat", [])
        groups = zip(flat, getattr(optimizer, "fp16_groups", []), strict=False)
        masters = [
            _unflatten_dense_tensors(each, group)  # type: ignore[no-untyped-call]
            for each, group in groups
        ]
    for group, held in zip(getattr(optimizer, "fp16_groups", []), masters, strict=False):
        for parameter, master in zip(group, held, strict=True):
            if names.get(parameter) in weights:
                master.detach().copy_(weights[names[parameter]])


def _shard(parameter: Any, value: Tensor) -> Tensor:
    """Returns this rank's part of a parameter's values, of shape (size of a shard,)."""
    size = parameter.ds_tensor.numel()
    start = dist.get_rank(parameter.ds_process_group) * size
    part = value.flatten()[start : start + size]
    return nn.functional.pad(part, (0, size - part.numel()))
