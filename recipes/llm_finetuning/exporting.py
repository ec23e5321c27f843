"""From a checkpoint to a folder: a whole model of transformers, or an adapter of peft."""

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
    """Writes the files and the tokenizer; no card is needed, but for an adapter its base.

    Args:
        checkpoint: what a fit wrote, on any device.
        output: the folder to write, made if it is not there.
        kind: adapter or merged, for a checkpoint of adapters; None for one of a whole model.

    Returns:
        How to load it.

    Raises:
        UserError: as `read_checkpoint`, and for a kind that the checkpoint is not of.
    """
    content = read_checkpoint(checkpoint, (CONFIG_KEY, CLASS_KEY, "state_dict"))
    settings = content.get(_SETTINGS)
    if not isinstance(settings, dict) or settings.get("method", "full") == "full":
        if kind is not None:
            raise UserError(
                f"--{kind} is for a checkpoint of model.method=lora or qlora, and {checkpoint} "
                "holds a whole model. Leave it out."
            )
        return export_model(checkpoint, output)
    if kind is None:
        raise UserError(
            f"{checkpoint} holds an adapter. Say what to make of it: --adapter, in peft's format, "
            "or --merged, a whole model of transformers."
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
    """Of a base in a GGUF file, which peft does not find by its name."""
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
            "The checkpoint's adapter is not of the layers that its settings name. Pass one that "
            "`fit` wrote, as it was written."
        )
    model.load_state_dict(state, strict=False)
    return model


def _merged(model: PreTrainedModel, settings: dict[str, Any]) -> PreTrainedModel:
    """By peft itself, from the adapter's files: what is exported is what others load."""
    from peft import PeftModel

    base = _base(settings)
    if settings["method"] == "qlora":  # what it was trained beside, and not what was quantized
        base = base.dequantize(dtype=base.dtype)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        merged: PreTrainedModel = PeftModel.from_pretrained(base, folder).merge_and_unload(
            safe_merge=True
        )
    return merged
