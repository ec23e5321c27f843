"""Makes tables of scales, and updates, saves and restores them."""

from __future__ import annotations

from typing import Any

import torch

from .fp8 import FP8GlobalStateManager, MetaTensorType
from .recipe import DelayedScaling, Format
from .utils import FP8TensorMeta

NAMES = ("scale", "scale_inv", "amax_history", "amax_history_index")

FORWARD = (MetaTensorType.FORWARD, MetaTensorType.HYBRID)


def key_of(table: MetaTensorType) -> str:
    """Returns a table's key in `fp8_meta`."""
    return FP8GlobalStateManager.get_meta_tensor_key(table)


def tables_of(fp8_meta: dict[str, Any], kinds: tuple[MetaTensorType, ...]) -> list[FP8TensorMeta]:
    """Returns the module's tables of these kinds."""
    return [fp8_meta[key_of(kind)] for kind in kinds if key_of(kind) in fp8_meta]


def kinds_in(fp8_meta: dict[str, Any]) -> tuple[MetaTensorType, ...]:
    """Returns the kinds of tables that the module has."""
    return tuple(kind for kind in MetaTensorType if key_of(kind) in fp8_meta)


def kinds_for(recipe: DelayedScaling) -> tuple[MetaTensorType, ...]:
    """Returns the kinds of tables that a recipe needs."""
    hybrid = (MetaTensorType.HYBRID,) if recipe.fp8_format is Format.HYBRID else ()
    return (MetaTensorType.FORWARD, *hybrid, MetaTensorType.BACKWARD)


def prepare(fp8_meta: dict[str, Any], recipe: DelayedScaling) -> None:
    """Makes the tables that a recipe needs, or changes the history's length of existing ones."""
    for kind in MetaTensorType:
        key = key_of(kind)
        if kind not in kinds_for(recipe):
            fp8_meta.pop(key, None)
            continue
        if key in fp8_meta:
            _resize(fp8_meta[key], recipe.amax_history_len)
            continue
        num_gemms = fp8_meta["num_gemms"]
        num_tensors = num_gemms * 2 if FP8GlobalStateManager.is_forward(kind) else num_gemms
        table = fp8_meta[key] = FP8TensorMeta()
        table.scale = torch.ones(num_tensors, device="hpu")
        table.scale_inv = torch.ones(num_tensors, device="hpu")
        table.amax_history = torch.zeros(recipe.amax_history_len, num_tensors, device="hpu")
        table.amax_history_index = torch.zeros(1, dtype=torch.int32, device="hpu")


def _resize(table: FP8TensorMeta, num_rows: int) -> None:
    """Keeps the last rows of the history, or makes room for more after the present one."""
    history, index = table.amax_history, int(table.amax_history_index)
    if num_rows == len(history):
        return
    if num_rows > len(history):
        room = history.new_zeros(num_rows - len(history), history.shape[1])
        table.amax_history = torch.cat((history[: index + 1], room, history[index + 1 :]))
        return
    in_order = torch.cat((history[index + 1 :], history[: index + 1]))
    table.amax_history = in_order[-num_rows:].clone()
    table.amax_history_index = torch.full_like(table.amax_history_index, num_rows - 1)


def update(fp8_meta: dict[str, Any], forward: bool, with_scales: bool) -> None:
    """Computes scales from the measurements of the step before, and goes on to the next row."""
    # Each module shares its measurements with the group by itself. On a card those of all modules
    # go together, which gives the same numbers by fewer collectives.
    recipe: DelayedScaling = fp8_meta["recipe"]
    kinds = FORWARD if forward else (MetaTensorType.BACKWARD,)
    present = None
    for kind in kinds:
        if key_of(kind) not in fp8_meta:
            continue
        table = fp8_meta[key_of(kind)]
        if recipe.reduce_amax:
            present = _shared(table, fp8_meta["fp8_group"], present)
        if with_scales:
            limit = fp8_meta[FP8GlobalStateManager.get_fp8_max_key(kind)]
            table.scale = _scale(table, limit, recipe)
            table.scale_inv = table.scale.reciprocal()
        if recipe.amax_history_len > 1:
            index = (table.amax_history_index + 1).remainder(recipe.amax_history_len)
            table.amax_history_index = index


def _shared(table: FP8TensorMeta, group: Any, present: torch.Tensor | None) -> torch.Tensor:
    """Writes the largest measurements of all ranks into a table, and returns them.

    Both tables of the forward pass have measured the same, so the second one takes those of the
    first.
    """
    row = table.amax_history_index.long()
    if present is None:
        present = table.amax_history.index_select(0, row)
        FP8GlobalStateManager.reduce_tensor_across_group_op_max(present, group)
    table.amax_history.index_copy_(0, row, present)
    return present


def _scale(table: FP8TensorMeta, limit: float, recipe: DelayedScaling) -> torch.Tensor:
    amax = _amax(table.amax_history, recipe)
    if recipe.scaling_factor_compute_algo is not None:
        return recipe.scaling_factor_compute_algo(amax, table.scale, limit, recipe)
    exponent = torch.floor(torch.log2(limit / amax)) - recipe.margin
    return torch.where(amax > 0.0, torch.exp2(exponent), table.scale)


def _amax(history: torch.Tensor, recipe: DelayedScaling) -> torch.Tensor:
    if callable(recipe.amax_compute_algo):
        return recipe.amax_compute_algo(history)
    return history.amax(0) if recipe.amax_compute_algo == "max" else history[0]


def snapshot(fp8_meta: dict[str, Any], kinds: tuple[MetaTensorType, ...]) -> list[Any]:
    """Returns copies of the tensors of the tables of these kinds."""
    tables = tables_of(fp8_meta, kinds)
    return [[getattr(table, name).clone() for name in NAMES] for table in tables]


def restore(fp8_meta: dict[str, Any], kinds: tuple[MetaTensorType, ...], saved: list[Any]) -> None:
    """Puts the tensors of a snapshot back."""
    for table, tensors in zip(tables_of(fp8_meta, kinds), saved, strict=True):
        for name, tensor in zip(NAMES, tensors, strict=True):
            setattr(table, name, tensor)
