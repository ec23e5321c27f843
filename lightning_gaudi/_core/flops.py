"""Counts the floating-point operations of a model, and knows the peak of the card."""

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
    r"^(?!.*upsample).*(attention|sdpa|matmul|linear|conv(olution|\dd)|gemm(_v2)?|mm_?$)"
)
"""Names of operators that multiply matrices: leaving out one would make any figure too small.

What interpolates (`upsample_bilinear2d`) multiplies none.
"""


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of matrix products in a block, with a multiply-add as two.

    Operations that activation checkpointing repeats count only on request: a model's utilization
    (MFU) is defined by the operations of the model, but the time of a step by all that run. A
    causal mask does not make attention cheaper. Torch's own `FlopCounterMode` counts both
    differently in backward, and does not know the vendor's kernels. Compiled modules run uncompiled
    in the block.

    Args:
        counts_recomputed: Whether repeated operations count, too.
        fp8_cost: As how many operations one in fp8 counts.

    Attributes:
        num_flops: The operations counted so far.

    Raises:
        ValueError: An operator multiplies matrices, and nobody knows how many operations it takes.
    """

    def __init__(self, *, counts_recomputed: bool = False, fp8_cost: float = 1.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_flops = 0
        self._fp8_cost = fp8_cost
        self._counts_recomputed = counts_recomputed

    def start(self) -> None:
        """Counts from here on, as the start of a `with` block does."""
        self.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """Stops counting."""
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
        # Operators of "prim" compute nothing and cannot be decomposed.
        if count is None and func.namespace != "prim":
            # A composite operator is counted by its parts, so the mode must be active for them.
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
            _check_known(func)
        out = func(*args, **kwargs)
        # After the call, since some formulas need the shape of the output.
        if count is not None and (self._counts_recomputed or not _is_recomputing()):
            cost = self._fp8_cost if count is _product_in_fp8 else 1
            self.num_flops += int(cost * count(*args, **kwargs, out_val=out))
        return out


def _formula(func: Any) -> Callable[..., int] | None:
    name = func.name()
    if _ATTENTION.match(name):
        return _attention_backward if "backward" in name or "bwd" in name else _attention
    # torch's table has one formula for all overloads of an operator.
    packet = func.overloadpacket
    found: Callable[..., int] | None = flop_registry.get(packet)
    # An operator in place, such as `addmm_`, computes what `addmm` does.
    if found is None and name.partition(".")[0].endswith("_"):
        home = getattr(torch.ops, func.namespace)
        found = flop_registry.get(getattr(home, packet.__name__.removesuffix("_"), None))
    return found or _OTHERS.get(name.partition(".")[0])


def _attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> int:
    """Returns two products: query [..., T, D] by key [..., S, D], and that by value [..., S, V]."""
    return 2 * prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def _attention_backward(gradient: Tensor, *args: Any, **kwargs: Any) -> int:
    """Counts four products. Kernels may recompute the probabilities, which does not count."""
    return 2 * _attention(*args, **kwargs)


def _product(inputs: Tensor, other: Tensor, *args: Any, out_val: Tensor) -> int:
    """Inputs [..., K] by whatever gives the output."""
    return 2 * out_val.numel() * inputs.shape[-1]


def _product_in_fp8(
    inputs: Tensor, is_transposed: bool, *args: Any, out_val: Tensor, **kwargs: Any
) -> int:
    """Inputs (M, K), or (K, M) if they are transposed, by whatever gives the output."""
    return 2 * out_val.numel() * inputs.shape[0 if is_transposed else -1]


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
    """Counts the sum of the products of left [N, A, K] and right [N, K, B]."""
    return 2 * left.numel() * right.shape[-1]


def _grouped_product(inputs: Tensor, other: Tensor, *args: Any, out_val: Tensor, **kw: Any) -> int:
    """Inputs [..., K] by other [..., K, B]; where neither has groups of its own, K is split."""
    is_split = inputs.dim() == other.dim() == 2
    return 2 * out_val.numel() * inputs.shape[-1] // (out_val.shape[0] if is_split else 1)


_OTHERS: dict[str, Callable[..., int]] = {
    "bitsandbytes::gemm_4bit": _product,
    "bitsandbytes::gemv_4bit": _product,
    "aten::linear": _product,
    "aten::matmul": _product,
    "aten::linear_backward": _linear_backward,
    "aten::matmul_backward": _matmul_backward,
    "aten::addbmm": _sum_of_products,
    "aten::addbmm_": _sum_of_products,
    "aten::_grouped_mm": _grouped_product,
    "hpu::fp8_gemm": _product_in_fp8,
    "hpu::fp8_gemm_v2": _product_in_fp8,
}
"""Formulas that torch lacks. Those of linear and matmul, and of their gradients, are for kernels
that a Gaudi has of its own; those of bitsandbytes are for weights in four bits.

Source: Intel Gaudi PyTorch bridge, hpu_ops/linear.h, linear_backward.h and matmul.h.
"""


def _check_known(func: Any) -> None:
    if PRODUCTS.search(func.name().partition(".")[0]):
        raise ValueError(
            f"flops_per_batch='measured' cannot count the operations of {func.name()}, of which "
            "no formula is known. Give their number for a batch: flops_per_batch=<number>."
        )


def _is_recomputing() -> bool:
    """Returns whether a forward runs within a backward, as in activation checkpointing."""
    if torch._C._current_graph_task_id() == -1:
        return False
    if torch.is_grad_enabled():  # in a backward gradients are disabled
        return True
    # Gradients are disabled, too, in the forward of an autograd.Function, such as fused attention.
    # Then a hook of torch.utils.checkpoint tells, or for its reentrant variant the autograd node.
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is not None and "_recomputation_hook" in getattr(hooks[0], "__qualname__", ""):
        return True
    node = torch._C._current_autograd_node()
    return node is not None and node.name() == "CheckpointFunctionBackward"


def available_flops(dtype: torch.dtype | str) -> int | None:
    """Returns the peak of this card in `dtype`, in FLOP/s; None if `why_no_peak` gives a reason."""
    card = vendor.generation()
    if card is None or why_no_peak(dtype):
        return None
    return int(card.peaks[_name(dtype)])


def why_no_peak(dtype: torch.dtype | str) -> str | None:
    """Returns why no peak is known for this process's card; None if one is known."""
    # Only a simulated card has this metric.
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
