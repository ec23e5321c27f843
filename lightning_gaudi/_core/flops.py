"""What a model computes, by the formulas of torch, and what the card could at most."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from lightning_gaudi.hardware import GAUDIS

from . import vendor

__all__ = ["FlopCounter"]

_ATTENTION = re.compile(r"^(aten::_scaled_dot_product_\w*attention|hpu::(fp8_)?sdpa)")
PRODUCTS = re.compile(
    r"^(?!.*upsample).*(attention|sdpa|matmul|linear|conv(olution|\dd)|gemm|mm_?$)"
)
"""Names of operators that multiply matrices: leaving out one would make any figure too small.

What interpolates (`upsample_bilinear2d`) multiplies none.
"""


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the products of matrices that run within it, multiplication and addition as two.

    What activation checkpointing computes a second time counts if it is asked for: of a model's
    utilization it is the operations of the model that are wanted, whatever it takes to have them;
    of the time of a step it is all of them. A causal mask makes attention no cheaper.
    Torch's own `FlopCounterMode` counts both the other way in backward, and knows none of the
    vendor's kernels. Within it, compiled modules run as they were written.

    Args:
        counts_recomputed: Whether what is computed a second time counts, too.

    Attributes:
        num_flops: what was counted so far.

    Raises:
        ValueError: An operator multiplies matrices, and nobody knows how many operations it takes.
    """

    def __init__(self, *, counts_recomputed: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_flops = 0
        self._counts_recomputed = counts_recomputed

    def start(self) -> None:
        """Counts from here on, as the start of a `with` block does."""
        self.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """Counts no more."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs an operator, and counts it."""
        kwargs = kwargs or {}
        count = _formula(func)
        # Those of "prim" compute nothing, and torch knows no parts of them.
        if count is None and func.namespace != "prim":
            with self:  # of what an operator is made of, where it is no kernel of its own
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
            _check_known(func)
        out = func(*args, **kwargs)
        if count is not None and (self._counts_recomputed or not _is_recomputing()):
            self.num_flops += int(count(*args, **kwargs, out_val=out))
        return out


def _formula(func: Any) -> Callable[..., int] | None:
    name = func.name()
    if _ATTENTION.match(name):
        return _attention_backward if "backward" in name or "bwd" in name else _attention
    packet = func.overloadpacket
    found: Callable[..., int] | None = flop_registry.get(packet)
    if found is None and name.partition(".")[0].endswith("_"):  # in place, as `addmm_` is `addmm`
        home = getattr(torch.ops, func.namespace)
        found = flop_registry.get(getattr(home, packet.__name__.removesuffix("_"), None))
    return found or _OTHERS.get(name.partition(".")[0])


def _attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> int:
    """Returns two products: query [..., T, D] by key [..., S, D], and that by value [..., S, V]."""
    return 2 * prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def _attention_backward(gradient: Tensor, *args: Any, **kwargs: Any) -> int:
    """Counts four products; the probabilities may be computed again, which does not count."""
    return 2 * _attention(*args, **kwargs)


def _product(inputs: Tensor, other: Tensor, *args: Any, out_val: Tensor) -> int:
    """Inputs [..., K] by whatever gives the output."""
    return 2 * out_val.numel() * inputs.shape[-1]


def _linear_backward(
    inputs: Tensor, gradient: Tensor, weight: Tensor, wanted: Sequence[bool], **kwargs: Any
) -> int:
    """Returns a product for each of the gradients of inputs and weight that is wanted."""
    return 2 * sum(wanted[:2]) * prod(gradient.shape) * inputs.shape[-1]


def _matmul_backward(
    gradient: Tensor, left: Tensor, right: Tensor, wanted: Sequence[bool], **kwargs: Any
) -> int:
    return _linear_backward(left, gradient, right, wanted)


def _sum_of_products(total: Tensor, left: Tensor, right: Tensor, *args: Any, **kwargs: Any) -> int:
    """Left [N, A, K] by right [N, K, B], which are added up."""
    return 2 * left.numel() * right.shape[-1]


def _grouped_product(inputs: Tensor, other: Tensor, *args: Any, out_val: Tensor, **kw: Any) -> int:
    """Inputs [..., K] by other [..., K, B]; where neither has groups of its own, K is split."""
    is_split = inputs.dim() == other.dim() == 2
    return 2 * out_val.numel() * inputs.shape[-1] // (out_val.shape[0] if is_split else 1)


_OTHERS: dict[str, Callable[..., int]] = {
    "aten::linear": _product,
    "aten::matmul": _product,
    "aten::linear_backward": _linear_backward,
    "aten::matmul_backward": _matmul_backward,
    "aten::addbmm": _sum_of_products,
    "aten::addbmm_": _sum_of_products,
    "aten::_grouped_mm": _grouped_product,
}
"""What torch's formulas do not know: the first four are kernels of their own on a Gaudi.

Source: Intel Gaudi PyTorch bridge, hpu_ops/linear.h, linear_backward.h and matmul.h.
"""


def _check_known(func: Any) -> None:
    if PRODUCTS.search(func.name().partition(".")[0]):
        raise ValueError(
            f"flops_per_batch='measured' cannot count the operations of {func.name()}, of which "
            "no formula is known. Give their number for a batch: flops_per_batch=<number>."
        )


def _is_recomputing() -> bool:
    """Tells if it is a forward within a backward, as activation checkpointing has one."""
    if torch._C._current_graph_task_id() == -1:
        return False
    if torch.is_grad_enabled():  # in a backward gradients are disabled
        return True
    # So they are in the forward of an autograd.Function, as that of fused attention: then the hooks
    # of torch.utils.checkpoint tell, or its node, if it is the reentrant one.
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is not None and "_recomputation_hook" in getattr(hooks[0], "__qualname__", ""):
        return True
    node = torch._C._current_autograd_node()
    return node is not None and node.name() == "CheckpointFunctionBackward"


def available_flops(dtype: torch.dtype | str) -> int | None:
    """Returns the peak of this card in `dtype`, in FLOP/s; None where `why_no_peak` says why."""
    card = vendor.generation()
    if card is None or why_no_peak(dtype):
        return None
    return int(card.peaks[_name(dtype)])


def why_no_peak(dtype: torch.dtype | str) -> str | None:
    """Returns why there is no peak to compare this process's card with; None where there is one."""
    simulation = vendor.metric("simulation")
    if simulation is not None:
        return (
            f"No MFU is reported: this {vendor.device_name()} is simulated and computes on "
            f"{simulation['ComputesOn']}, whose speed is no Gaudi's."
        )
    card = vendor.generation()
    if card is None:
        known = ", ".join(each.device_name for each in GAUDIS.values())
        return f"No MFU is reported: no peak is known of {vendor.device_name()!r}, but of {known}."
    if card.peak(_name(dtype)) is None:
        known = " and ".join(name for name in card.peaks if name != "tf32")
        return (
            f"No MFU is reported: of a {card.device_name} the peak in {known} is known, and "
            f"this trains in {_name(dtype)}."
        )
    return None


def _name(dtype: torch.dtype | str) -> str:
    name = str(dtype).removeprefix("torch.")
    return {"bf16": "bfloat16", "fp32": "float32"}.get(name, name)
