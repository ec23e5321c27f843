"""Lets torch's optimizers step all weights of a group by few launches on an HPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer, adam

from lightning_gaudi._core import vendor

from .apply import wrap

Tensors = list[Tensor]


def step_kinds_apart() -> None:
    """Has DTensors and plain tensors of a group stepped one after the other, by lists of each.

    torch groups what it steps at once by device and dtype, and has no operator for a list of both
    kinds (2.13, `optim/optimizer.py`). Tensor parallelism leaves some weights whole, so each weight
    of such a group would take about eight launches.
    """

    @wrap("mixed-weights", Optimizer, "_group_tensors_by_device_and_dtype")
    def group(original: Callable[..., Any], lists: Any, with_indices: bool = False) -> Any:
        kinds = [isinstance(each, DTensor) for each in lists[0]]
        if all(kinds) or not any(kinds):
            return original(lists, with_indices)
        found: dict[Any, Any] = {}
        for is_dtensor in (True, False):
            at = [index for index, kind in enumerate(kinds) if kind is is_dtensor]
            # Averages that an optimizer does not keep are an empty list.
            parts = [[each[index] for index in at] if each else each for each in lists]
            for (device, dtype), (tensors, indices) in original(parts, with_indices).items():
                found[device, (dtype, is_dtensor)] = (tensors, [at[index] for index in indices])
        return found


_is_by_kernel = False


def step_adam_by_kernel(is_wanted: bool) -> None:
    """Has Adam and AdamW step what they step at once by the card's kernel for that, if it has one.

    torch composes the step of seven operators for lists. Its option `fused` takes the kernel, too,
    but Lightning refuses to clip gradients for such an optimizer, and it keeps its counts of steps
    on the card. Here they stay on the host, as `foreach` has them. The sums are the same in
    float32, rounded elsewhere; narrower ones would not be, and are left to torch.

    Args:
        is_wanted: Whether what is set up now takes it: where weights are in shards. Elsewhere a
            simulated card's weights stay the CPU's to the bit.
    """
    global _is_by_kernel
    _is_by_kernel = is_wanted
    if not is_wanted:
        return

    @wrap("adam-kernel", adam, "_multi_tensor_adam")
    def step(original: Callable[..., None], *lists: Any, **options: Any) -> None:
        if len(lists) != 6 or not _takes_kernel(lists, options):
            return original(*lists, **options)
        torch._foreach_add_(lists[-1], 1)
        grouped = Optimizer._group_tensors_by_device_and_dtype([*lists])
        for (device, _), (tensors, _) in grouped.items():
            _step(tensors, device, options)
        return None


def _takes_kernel(lists: Sequence[Tensors], options: Mapping[str, Any]) -> bool:
    weights, *_, steps = lists
    kinds = {weight.dtype for some in lists[:4] for weight in some}
    return (
        _is_by_kernel
        and vendor.has_adam_kernel()
        and not torch.compiler.is_compiling()
        and not (options["capturable"] or options["differentiable"] or options["has_complex"])
        and not any(isinstance(each, Tensor) for each in options.values())
        and kinds == {torch.float32}
        and all(weight.device.type == "hpu" for weight in weights)
        and all(step.is_cpu for step in steps)
    )


def _step(lists: Any, device: Any, options: Mapping[str, Any]) -> None:
    """Steps the weights of one device and dtype; one that began late has a count of its own."""
    counts = [float(step) for step in lists[-1]]
    is_adamw = options.get("decoupled_weight_decay")
    kernel: Any = torch._fused_adamw_ if is_adamw else torch._fused_adam_
    names = ("amsgrad", "beta1", "beta2", "lr", "weight_decay", "eps", "maximize")
    for count in dict.fromkeys(counts):
        at = [index for index, each in enumerate(counts) if each == count]
        step = _on_card(count, device)
        parts = [[each[index] for index in at] if each else each for each in lists[:-1]]
        kernel(*parts, [step] * len(at), **{name: options[name] for name in names})


_counts: dict[torch.device, tuple[float, Tensor]] = {}


def _on_card(count: float, device: Any) -> Tensor:
    """Returns a count of steps, of shape (), float32: the same for all groups of a step."""
    if _counts.get(device, (None,))[0] != count:
        _counts[device] = count, torch.full((), count, dtype=torch.float32, device=device)
    return _counts[device][1]
