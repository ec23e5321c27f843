"""Has `HPUBitsandbytesPrecision`, which keeps frozen weights in four bits, by bitsandbytes."""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from lightning.fabric.plugins.precision import bitsandbytes as theirs
from lightning.fabric.plugins.precision.bitsandbytes import BitsandbytesPrecision
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.nn import Module
from typing_extensions import override

MODES = {"_NF4Linear": "nf4", "_NF4DQLinear": "nf4-dq"}
"""The modes that an HPU has kernels for, by Lightning's layers."""
_OTHER_MODES = {
    **{"_FP4Linear": "fp4", "_FP4DQLinear": "fp4-dq"},
    **{"_Int8LinearInference": "int8", "_Linear8bitLt": "int8-training"},
}
_INSTEAD = (
    "bitsandbytes has a kernel for an HPU for NF4 alone. Pass mode='nf4', or 'nf4-dq', which also "
    "quantizes the scales."
)
_STATE = "weight."
"""The beginning of the names of a quantized weight's scales and levels, in a state dict."""


class HPUQuantizedPrecision(BitsandbytesPrecision):
    """Keeps frozen weights of linear layers in four bits, in the Trainer and in Fabric.

    A weight is converted to `dtype` whenever its layer computes.

    Source: bitsandbytes 0.50, backends/hpu/ops.py; its tests/helpers.py (`is_supported_on_hpu`).
    """

    def __init__(
        self,
        mode: Literal["nf4", "nf4-dq"],
        dtype: torch.dtype | None = None,
        ignore_modules: set[str] | None = None,
    ) -> None:
        """Chooses the layers.

        Args:
            mode: `"nf4"`, or `"nf4-dq"`, where the scales are quantized, too.
            dtype: The dtype that layers compute in: bfloat16 (the default) or float32.
            ignore_modules: Beginnings of the names of layers that stay as they are, such as
                `{"lm_head"}`.

        Raises:
            MisconfigurationException: The card has no kernel for the mode or the dtype.
            ModuleNotFoundError: bitsandbytes is not installed.
        """
        if mode not in MODES.values():
            raise MisconfigurationException(_refusal(type(self).__name__, mode))
        super().__init__(mode, dtype or torch.bfloat16, ignore_modules)
        self.validate_for_hpu()

    def validate_for_hpu(self) -> None:
        """Chooses layers that quantize on an HPU, whether Lightning or the user made the plugin.

        Raises:
            MisconfigurationException: The card has no kernel for the mode or the dtype.
        """
        name = self._linear_cls.__name__
        if name in _OTHER_MODES:
            raise MisconfigurationException(_refusal("BitsandbytesPrecision", _OTHER_MODES[name]))
        if self.dtype not in (torch.bfloat16, torch.float32):
            raise MisconfigurationException(
                f"BitsandbytesPrecision(dtype={self.dtype}) cannot be had with accelerator='hpu': "
                "NF4 is made into bfloat16 or float32 there. Pass dtype=torch.bfloat16."
            )
        if name in MODES:
            kind: Any = self._linear_cls
            self._linear_cls: type[Module] = _on_hpu(kind)

    @override
    def convert_module(self, module: Module) -> Module:
        """Replaces linear layers by layers in four bits.

        Raises:
            MisconfigurationException: Some layers are already quantized to another format.
        """
        bnb = _library()
        for name, layer in module.named_modules():
            if isinstance(layer, bnb.nn.Linear8bitLt):
                raise MisconfigurationException(_other_layer(name, layer, "int8"))
            kind = layer.weight.quant_type if isinstance(layer, bnb.nn.Linear4bit) else "nf4"
            if kind != "nf4":
                raise MisconfigurationException(_other_layer(name, layer, kind))
        module = super().convert_module(module)
        for layer in module.modules():
            if isinstance(layer, bnb.nn.Linear4bit) and layer.bias is not None:
                # bitsandbytes does so in the first forward, where it would break a compiled graph.
                layer.bias.data = layer.bias.data.to(self.dtype)
        return module


class HPUBitsandbytesPrecision(HPUQuantizedPrecision):
    """Keeps frozen weights in four bits, in Fabric: `plugins=BitsandbytesPrecision("nf4-dq")`.

    See `HPUQuantizedPrecision`.
    """


def _library() -> Any:
    import bitsandbytes

    return bitsandbytes


def _refusal(name: str, mode: str) -> str:
    return f"{name}(mode={mode!r}) cannot be had with accelerator='hpu': {_INSTEAD}"


def _other_layer(name: str, layer: Module, kind: str) -> str:
    return (
        f"The layer {name!r} is a {type(layer).__name__}, whose weights are in {kind}, and "
        f"BitsandbytesPrecision with accelerator='hpu' computes with NF4: {_INSTEAD} Load the "
        "model without its quantization."
    )


def _on_hpu(base: Any) -> Any:
    """Returns a subclass of Lightning's layer that quantizes on any device, not only on CUDA."""
    bnb, replace = _library(), cast(Any, theirs._replace_param)

    class Quantized(base):  # type: ignore[misc]
        weight: Any

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._quantize_on_card()
            # It must run before Lightning's own hook, which would quantize these weights again.
            hook = self._register_load_state_dict_pre_hook(self._take_quantized)
            self._load_state_dict_pre_hooks.move_to_end(hook.id, last=False)

        def _quantize_on_card(self) -> None:
            """Quantizes the weights if they are on the card."""
            is_made = isinstance(self.weight, bnb.nn.Params4bit)
            if is_made and self.weight.device.type == "hpu":
                self.quantize_()

        @staticmethod
        def quantize(params4bit: Any, weight: Tensor, device: torch.device | None) -> Any:
            place = params4bit.device if params4bit.device.type != "meta" else torch.device("hpu")
            # An HPU cannot convert NF4 to float16, and bfloat16 would lose digits.
            dtype = torch.float32 if weight.dtype == torch.float16 else weight.dtype
            packed, state = bnb.functional.quantize_4bit(
                weight.contiguous().to(device or place, dtype),
                blocksize=params4bit.blocksize,
                compress_statistics=params4bit.compress_statistics,
                quant_type=params4bit.quant_type,
                quant_storage=params4bit.quant_storage,
            )
            return replace(params4bit, packed, state)

        def to_empty(self, *, device: Any, recurse: bool = True) -> Any:
            super().to_empty(device=device, recurse=recurse)
            self._quantize_on_card()
            return self

        def reset_parameters(self) -> None:
            super().reset_parameters()
            self._quantize_on_card()

        def _take_quantized(self, state: dict[str, Any], prefix: str, *_: Any) -> None:
            """Takes a weight that was saved in four bits, with its scales."""
            weight = state.get(f"{prefix}weight")
            beginning = f"{prefix}{_STATE}"
            saved = [name for name in state if name.startswith(beginning)]
            if weight is None or not saved:
                return
            place = self.weight.device.type
            self.weight = bnb.nn.Params4bit.from_prequantized(
                data=weight,
                quantized_stats={name.removeprefix(beginning): state.pop(name) for name in saved},
                device="hpu" if place == "meta" else place,
                module=self,
            )
            del state[f"{prefix}weight"]

    Quantized.__name__ = Quantized.__qualname__ = f"HPU{base.__name__.lstrip('_')}"
    return Quantized
