"""Exports a checkpoint to a folder, as a whole model of transformers or an adapter of peft."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from recipes.common.errors import UserError
from recipes.common.export import export as export_model, read_checkpoint, tokenizer_of
from recipes.common.hub import load_pretrained, locate
from recipes.common.training import CLASS_KEY, CONFIG_KEY
from recipes.llm_finetuning.adapters import (
    add_lora,
    base_fingerprint,
    check_base,
    is_of_adapter,
)
from recipes.llm_finetuning.quantization import four_bit_options

ADAPTER = "adapter"
_SETTINGS = "hyper_parameters"
_PREFIX = "model."


def export(checkpoint: Path, output: Path, kind: str | None) -> str:
    """Writes the files of the model and its tokenizer.

    No card is needed. For an adapter the base model is loaded.

    Args:
        checkpoint: the checkpoint that a fit wrote, on any device.
        output: the folder to write, which is created if it does not exist.
        kind: adapter or merged, for a checkpoint of adapters; None for one of a whole model.

    Returns:
        The call that loads the export.

    Raises:
        UserError: as `read_checkpoint`, and if the kind does not suit the checkpoint.
    """
    content = read_checkpoint(checkpoint, (CONFIG_KEY, CLASS_KEY, "state_dict"))
    settings = content.get(_SETTINGS)
    if not isinstance(settings, dict) or settings.get("method", "full") == "full":
        if kind is not None:
            raise UserError(
                f"--{kind} is for a checkpoint of model.method=lora or qlora, and {checkpoint} "
                f"holds a whole model. Leave out --{kind}."
            )
        return export_model(checkpoint, output)
    if kind is None:
        raise UserError(
            f"{checkpoint} holds an adapter. Choose what to export: --adapter for the adapter in "
            "peft's format, or --merged for a whole model of transformers."
        )
    model = _with_adapter(content, settings)
    if kind == ADAPTER:
        model.save_pretrained(output)
        tokenizer_of(content).save_pretrained(output)
        return _how_to_load(settings["name"], output)
    merged = _merged(model, settings)
    merged.save_pretrained(output)
    tokenizer_of(content).save_pretrained(output)
    return f"transformers.{type(merged).__name__}.from_pretrained('{output}')"


def _how_to_load(name: str, output: Path) -> str:
    """Returns the call that loads an adapter; peft finds no base in a GGUF file by itself."""
    place, gguf = locate("model.name", name)
    if gguf is None:
        return f"peft.AutoPeftModelForCausalLM.from_pretrained('{output}')"
    base = f"transformers.AutoModelForCausalLM.from_pretrained('{place}', gguf_file='{gguf}')"
    return f"peft.PeftModel.from_pretrained({base}, '{output}')"


def _base(settings: dict[str, Any]) -> PreTrainedModel:
    dtype = torch.bfloat16 if settings["dtype"] == "bf16" else torch.float32
    options: dict[str, Any] = {"dtype": dtype}
    if settings["method"] == "qlora":
        is_double = settings["double_quantization"]
        options |= four_bit_options(dtype, double_quantization=is_double)
    model: PreTrainedModel = load_pretrained(
        AutoModelForCausalLM, "model.name", settings["name"], **options
    )
    return model


def _with_adapter(content: dict[str, Any], settings: dict[str, Any]) -> PreTrainedModel:
    model = _base(settings)
    check_base(content, base_fingerprint(model), settings["name"])
    add_lora(
        model,
        rank=settings["lora_rank"],
        alpha=settings["lora_alpha"],
        dropout=settings["lora_dropout"],
        targets=settings["lora_targets"],
        base_name=settings["name"],
        method=settings["method"],
    )
    state = {n.removeprefix(_PREFIX): weight for n, weight in content["state_dict"].items()}
    wanted = {name for name in model.state_dict() if is_of_adapter(name)}
    if wanted != set(state):
        raise UserError(
            "The checkpoint's adapter belongs to other layers than its settings name, so the "
            "checkpoint was changed. Pass one as `fit` wrote it."
        )
    model.load_state_dict(state, strict=False)
    return model


def _merged(model: PreTrainedModel, settings: dict[str, Any]) -> PreTrainedModel:
    """Returns the base merged with the adapter.

    peft does so from the files of an adapter, as it would for whoever loads the exported adapter.
    """
    from peft import PeftModel

    base = _base(settings)
    if settings["method"] == "qlora":
        # The adapter corrects the quantized weights, which differ from the published ones.
        base = base.dequantize(dtype=base.dtype)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        merged: PreTrainedModel = PeftModel.from_pretrained(base, folder).merge_and_unload(
            safe_merge=True
        )
    return merged
