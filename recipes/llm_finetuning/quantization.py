"""QLoRA: frozen weights in four bits, NF4, by transformers and bitsandbytes."""

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
    """Returns what `from_pretrained` is told, to have linear layers in NF4.

    They are quantized on the host, whatever they are trained on: each rank, each device and each
    resumed run has the same bits, and an adapter fits all of them.

    Args:
        dtype: what they are made into, to multiply with them.
        double_quantization: whether the scales are quantized, too.

    Raises:
        UserError: without bitsandbytes or accelerate.
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

    What is computed with weights that it has repacked has no gradients, and nothing says so.

    Args:
        model: of transformers, with layers in four bits.
    """
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False


def check_quantization(config: Any, name: str, method: str) -> None:
    """Refuses a model whose files have weights that are quantized otherwise than asked for.

    Args:
        config: of transformers.
        name: of the model.
        method: full, lora or qlora.

    Raises:
        UserError: naming what they are in.
    """
    found = getattr(config, "quantization_config", None)
    if found is None:
        return
    stated = found if isinstance(found, dict) else found.to_dict()
    kind = _kind_of(stated)
    if kind != "NF4":
        raise UserError(
            f"model.name={name} has weights in {printable(kind)}, and a Gaudi has a kernel of "
            "bitsandbytes for NF4 alone. Name the model as it was before it was quantized; "
            "model.method=qlora quantizes it."
        )
    if method != "qlora":
        raise UserError(
            f"model.name={name} has weights in NF4, which model.method={method} does not train "
            "beside. Set model.method=qlora."
        )


def _kind_of(stated: dict[str, Any]) -> str:
    method = str(stated.get("quant_method", "an unknown format"))
    if not method.startswith("bitsandbytes"):
        return method
    if stated.get("load_in_8bit"):
        return "int8"
    return str(stated.get("bnb_4bit_quant_type", "fp4")).upper()


def refuse_shards(strategy: Strategy) -> None:
    """Refuses a strategy that cuts up weights, or states, of a model in four bits.

    Raises:
        UserError: it does.
    """
    if isinstance(strategy, DeepSpeedStrategy | FSDPStrategy | ModelParallelStrategy):
        raise UserError(
            f"trainer.strategy is {type(strategy).__name__}, and model.method=qlora keeps all "
            "quantized weights on each card. Leave trainer.strategy out, or set it to hpu_ddp; to "
            "cut weights up, set model.method=lora."
        )


def refuse_fp8(precision: Precision) -> None:
    """Refuses to multiply weights in four bits in fp8, which nobody does.

    Raises:
        UserError: the precision is fp8.
    """
    if getattr(precision, "computes_in_fp8", False):
        raise UserError(
            "model.method=qlora keeps the weights of linear layers in four bits, and "
            "trainer.precision=fp8 multiplies others. Set trainer.precision=bf16-mixed, or "
            "model.method=lora, whose frozen weights compute in fp8."
        )
