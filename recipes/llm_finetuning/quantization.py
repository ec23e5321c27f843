"""Keeps frozen weights in four bits (NF4, for QLoRA), by transformers and bitsandbytes."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.plugins import Precision
from lightning.pytorch.strategies import (
    DeepSpeedStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
    Strategy,
)
from torch import nn

from lightning_gaudi.untrusted import printable
from recipes.common.errors import UserError

_INSTALL = "pip install 'lightning-gaudi[recipes,llm]'"


def four_bit_options(dtype: torch.dtype, *, double_quantization: bool) -> dict[str, Any]:
    """Returns the arguments of `from_pretrained` that quantize linear layers to NF4.

    Weights are quantized on the host, even if they are trained on a card. So they have the same
    bits on each rank, on each kind of device and in each resumed run, and an adapter suits them.

    Args:
        dtype: the dtype that weights are converted to when they are multiplied.
        double_quantization: whether the scales are quantized, too.

    Raises:
        UserError: bitsandbytes or accelerate is not installed.
    """
    for package in ("bitsandbytes", "accelerate"):
        try:
            __import__(package)
        except ImportError as error:
            raise UserError(
                f"model.method=qlora needs the package {package}, which is not installed. Run: "
                f"{_INSTALL}"
            ) from error
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=double_quantization,
        bnb_4bit_compute_dtype=dtype,
    )
    return {"quantization_config": config, "device_map": {"": "cpu"}}


def keep_gradients(model: nn.Module) -> None:
    """Keeps bitsandbytes 0.50 from repacking weights when they are evaluated on a CPU.

    No gradient flows through a layer whose weights it has repacked, and no error says so.

    Args:
        model: a model of transformers, which may have layers in four bits.
    """
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False


def check_quantization(config: Any, name: str, method: str) -> None:
    """Refuses a model whose files hold quantized weights that the method cannot train with.

    Args:
        config: the model's configuration, of transformers.
        name: the model's name.
        method: full, lora or qlora.

    Raises:
        UserError: The weights are not in NF4, or they are and the method is not qlora.
    """
    found = getattr(config, "quantization_config", None)
    if found is None:
        return
    stated = found if isinstance(found, dict) else found.to_dict()
    kind = _kind_of(stated)
    if kind != "NF4":
        raise UserError(
            f"model.name={name} has weights in {printable(kind)}, and on a Gaudi bitsandbytes has "
            "a kernel for NF4 alone. Name the model that was not quantized; model.method=qlora "
            "quantizes it."
        )
    if method != "qlora":
        raise UserError(
            f"model.name={name} has weights in NF4, and model.method={method} does not train with "
            "such weights. Set model.method=qlora."
        )


def _kind_of(stated: dict[str, Any]) -> str:
    method = str(stated.get("quant_method", "an unknown format"))
    if not method.startswith("bitsandbytes"):
        return method
    if stated.get("load_in_8bit"):
        return "int8"
    return str(stated.get("bnb_4bit_quant_type", "fp4")).upper()


def refuse_shards(strategy: Strategy) -> None:
    """Refuses a strategy that divides weights or states among cards, for a model in four bits.

    Raises:
        UserError: The strategy does so.
    """
    if isinstance(strategy, DeepSpeedStrategy | FSDPStrategy | ModelParallelStrategy):
        raise UserError(
            f"trainer.strategy is {type(strategy).__name__}, and model.method=qlora keeps all "
            "quantized weights on each card. Leave trainer.strategy out, or set it to hpu_ddp; to "
            "divide weights among cards, set model.method=lora."
        )


def refuse_fp8(precision: Precision) -> None:
    """Refuses fp8 for a model in four bits, whose layers are none that could multiply in fp8.

    Raises:
        UserError: The precision is fp8.
    """
    if getattr(precision, "computes_in_fp8", False):
        raise UserError(
            "model.method=qlora keeps the weights of linear layers in four bits, and "
            "trainer.precision=fp8 cannot multiply those. Set trainer.precision=bf16-mixed, or "
            "model.method=lora, whose frozen weights are multiplied in fp8."
        )
