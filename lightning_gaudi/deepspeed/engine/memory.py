"""Keeps DeepSpeed's buffers on a card in proportion to the model."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import Module

from lightning_gaudi._patches.apply import replace, require

_PATCH = "deepspeed-masters"

LIGHTNINGS_BUCKET = 200_000_000
"""The elements of a gradient bucket if the user has no setting.

Source: Lightning 2.5.6 to 2.6.6, `DeepSpeedStrategy(reduce_bucket_size=...)`.
"""

_SHARDS_PER_BUCKET = 4
"""How many buckets a card's share of the gradients fills if the user has no setting."""

_SMALLEST = 25 * 2**20 // 4
"""The elements that fit into any bucket of ours: 25 MiB in fp32, the bucket of torch's own DDP.

Each bucket takes a collective and three launches; a smaller one would not be worth them.
"""


def with_fitting_buckets(config: dict[str, Any], model: Module, world_size: int) -> dict[str, Any]:
    """Returns the settings with a gradient bucket that is no larger than the model can use.

    DeepSpeed allocates the whole bucket, 763 MiB in fp32 with Lightning's default, whatever the
    model's size. A user's setting stays. In ZeRO-3 it allocates one for as long as the engine
    lives and copies each gradient there, but sends them from elsewhere if it scatters them, as it
    does by default: such a bucket is not made at all.

    Args:
        config: DeepSpeed's settings; not changed.
        model: Its parameters may be in shards.
        world_size: The number of cards.
    """
    zero = config.get("zero_optimization")
    if not isinstance(zero, dict):
        return config
    if zero.get("stage") == 3 and zero.get("reduce_scatter", True) and "zenflow" not in zero:
        zero = {**zero, "contiguous_gradients": False}
        config = {**config, "zero_optimization": zero}
    if zero.get("reduce_bucket_size") != LIGHTNINGS_BUCKET:
        return config
    sizes = [_num_elements(each) for each in model.parameters() if each.requires_grad]
    share = max(sum(sizes) // (_SHARDS_PER_BUCKET * world_size), min(sum(sizes), _SMALLEST))
    config = deepcopy(config)
    config["zero_optimization"]["reduce_bucket_size"] = min(
        # The largest parameter must fit into a bucket.
        LIGHTNINGS_BUCKET,
        max(share, *sizes, 1),
    )
    return config


def share_equal_copies(optimizer: Any) -> None:
    """Lets ZeRO-3's master weights share the memory of the weights if both are fp32 on the card.

    DeepSpeed means to do so, but compares a tensor's device with a device's name, which are never
    equal, so each card would hold its share of the weights twice. Delete once it compares devices
    (deepspeed 0.19.8, `runtime/zero/stage3.py`, `_create_fp32_partitions`).

    Args:
        optimizer: DeepSpeed's, of any stage.
    """
    if type(optimizer).__name__ != "DeepSpeedZeroOptimizer_Stage3":
        return
    names = ("fp16_partitioned_groups_flat", "fp32_partitioned_groups_flat")
    require(_PATCH, optimizer, *names)
    for weight, master in _pairs(*(getattr(optimizer, name) for name in names)):
        if _is_copy(weight, master):
            replace(_PATCH, master, "data", weight.data)


def save_views_as_weights(model: Module) -> None:
    """Has autograd save a part or a transpose of a ZeRO-3 weight as the weight itself.

    A weight that autograd saves is released after its forward, and gathered again for its backward.
    A view of it keeps the gathered memory until then: of Mixtral, whose experts are parts of one
    weight in each layer, all cards held all weights. Modules of torch save weights alone. What is
    compiled takes views within its graphs.

    Args:
        model: With the hooks of DeepSpeed's engine, which gather before those that are added here.
    """
    for module in model.modules():
        is_own = not type(module).__module__.startswith("torch.nn.")
        weights: list[Any] = [
            each for each in module.parameters(recurse=False) if hasattr(each, "ds_id")
        ]
        if is_own and any(len(each.ds_shape) > 1 for each in weights):
            views = _SavedViews(weights)
            module.register_forward_pre_hook(views.begin)
            module.register_forward_hook(views.end, always_call=True)


class _SavedViews:
    """What autograd saves of some weights, while a module of theirs runs."""

    def __init__(self, weights: list[Any]) -> None:
        self._weights = weights
        self._begun: list[saved_tensors_hooks] = []

    def begin(self, module: Module, args: Any) -> None:
        if not torch.compiler.is_compiling():
            self._begun.append(saved_tensors_hooks(self._pack, self._unpack))
            self._begun[-1].__enter__()

    def end(self, module: Module, args: Any, result: Any) -> None:
        if not torch.compiler.is_compiling() and self._begun:
            self._begun.pop().__exit__()

    def _pack(self, saved: Tensor) -> Any:
        memory = saved.untyped_storage().data_ptr()
        for weight in self._weights:
            if memory and weight.untyped_storage().data_ptr() == memory:
                return weight, saved.size(), saved.stride(), saved.storage_offset()
        return saved

    @staticmethod
    def _unpack(saved: Any) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        weight, *place = saved
        view: Tensor = weight.detach().as_strided(*place)
        return view


def _pairs(weights: Iterable[Any], masters: Iterable[Any]) -> list[tuple[Tensor, Tensor]]:
    pairs = zip(weights, masters, strict=False)
    return [pair for pair in pairs if all(isinstance(each, Tensor) for each in pair)]


def _is_copy(weight: Tensor, master: Tensor) -> bool:
    same = (weight.dtype, weight.device, weight.shape) == (
        master.dtype,
        master.device,
        master.shape,
    )
    return same and weight.dtype == torch.float32


def _num_elements(parameter: Tensor) -> int:
    """Returns the number of elements of a whole parameter, also of a sharded one."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))
