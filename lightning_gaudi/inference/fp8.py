"""Linear layers of a model that generates, in fp8: weights are kept so, scales are found before.

I input features, O output features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_gaudi._core import vendor
from lightning_gaudi._core.precision.fp8 import find_linears
from lightning_gaudi._core.wording import listed


class Fp8Linear(nn.Module):
    """Computes what a linear layer does, by one product of fp8 matrices; for inference alone.

    Scales are powers of two, as Transformer Engine's: the largest number that was seen comes as
    near to e4m3's largest as it can. A larger input becomes that.

    Args:
        layer: Its weight is on the card, fp32 or bf16 (O, I).
        largest: The largest absolute value of its inputs, fp32 of shape ().
        limit: The largest number of fp8 that scales aim at.
    """

    weight: Tensor
    """(O, I), e4m3."""
    input_scale: Tensor
    """What inputs are multiplied with before they are rounded, fp32 of shape ()."""
    input_unit: Tensor
    """What one unit of a rounded input means."""
    weight_unit: Tensor
    """What one unit of the weight means."""
    bias: Tensor | None
    """(O,), bf16."""

    def __init__(self, layer: nn.Linear, largest: Tensor, limit: float) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        weight = layer.weight.detach()
        weight_scale = _scale(weight.abs().amax().float(), limit)
        self.register_buffer("weight", vendor.cast_to_fp8(weight, weight_scale))
        self.register_buffer("weight_unit", weight_scale.reciprocal())
        self.register_buffer("input_scale", _scale(largest, limit))
        self.register_buffer("input_unit", self.input_scale.reciprocal())
        # The product takes its bias in bf16, also where its result is in fp32.
        bias = None if layer.bias is None else layer.bias.detach().bfloat16()
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """Returns (..., O), in the dtype of the input (..., I)."""
        rows = vendor.cast_to_fp8(x.flatten(0, -2), self.input_scale)
        units = (self.input_unit, self.weight_unit)
        product = vendor.fp8_product(rows, self.weight, units, self.bias, x.dtype)
        return product.view(*x.shape[:-1], self.out_features)


def to_fp8(model: nn.Module, calibrate: Callable[[], Any], skip: Sequence[str] = ()) -> list[str]:
    """Has a model's linear layers multiply in fp8, in place, for inference alone.

    Their weights take half the memory that they take in bf16, and are no parameters any more. What
    makes the logits, adapters and what `skip` names stay as they are; so does what is no linear
    layer.

    Args:
        model: On the card, with whole weights in fp32 or bf16, in evaluation mode.
        calibrate: Runs the model on inputs as it will be given. The largest of what each layer gets
            then decides on its scale; what is larger later is cut off at it.
        skip: Names of layers, or of what they are in.

    Returns:
        The names of the layers that are in fp8.

    Raises:
        ValueError: The card has no fp8, no layer could compute in it, a name in `skip` is no
            layer's, or `calibrate` has not run all layers.
    """
    card = vendor.generation()
    if card is None or not card.has_float8:
        name = "there is none" if card is None else f"this card is a {card.title}"
        raise ValueError(f"fp8 needs a Gaudi 2 or later, and {name}. Generate in bf16.")
    linears = find_linears(model, skip)
    if parts := [name for name, layer in linears.items() if hasattr(layer.weight, "device_mesh")]:
        raise ValueError(f"{listed(parts)}: the weight is in parts, and fp8 needs all of it.")
    limit = vendor.transformer_engine().recipe.Format.HYBRID.value.max_fwd
    # What is made in inference mode could not be used outside of it.
    with torch.inference_mode(False), torch.no_grad():
        largest = _largest_inputs(linears, calibrate)
        for name, layer in linears.items():
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, Fp8Linear(layer, largest[name], limit))
    return [*linears]


def _largest_inputs(
    linears: dict[str, nn.Linear], calibrate: Callable[[], Any]
) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}

    def note(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def look(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            seen = given[0].abs().amax().float()
            found[name] = torch.maximum(found[name], seen) if name in found else seen

        return look

    hooks = [layer.register_forward_pre_hook(note(name)) for name, layer in linears.items()]
    try:
        # Operator by operator: graphs for a few inputs would take longer to compile than they do.
        with torch.compiler.set_stance("force_eager"):
            calibrate()
    finally:
        for hook in hooks:
            hook.remove()
    if missing := [name for name in linears if name not in found]:
        raise ValueError(
            f"`calibrate` has not run {listed(missing)}, so their scales are not known. Run the "
            "whole model in it, or leave them out (skip)."
        )
    return found


def _scale(largest: Tensor, limit: float) -> Tensor:
    """The largest power of two that keeps within the limit; 1 for zeros."""
    return torch.where(largest > 0, torch.exp2(torch.floor(torch.log2(limit / largest))), 1.0)
