"""Measures four reference steps: BERT-large and T5-small as they are trained, LoRA, and decoding.

A plan compares their times with those that public runs would have (`tools/plan/step_times.py`).
The weights are random and nothing is downloaded. A simulated card, which is a CPU, gets models of a
few thousand weights in their place, and the rows say so.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from lightning_gaudi._core import vendor
from lightning_gaudi.inference import TextGenerator
from lightning_gaudi.tools.verify.parts.context import Context, Tell

Step = Callable[[], object]


class Made(NamedTuple):
    """A reference step that can be taken."""

    step: Step
    model: torch.nn.Module
    row: dict[str, int]
    """How many samples it takes, or tokens it writes."""


def measure(context: Context, tell: Tell) -> None:
    """Reports the seconds of each step, and how many samples or tokens it takes."""
    if importlib.util.find_spec("transformers") is None:
        tell({"note": "transformers is not installed, and they need it: pip install transformers"})
        return
    for name, make in STEPS.items():
        step, _, row = make(context.device, context.is_small)
        seconds = context.seconds(step, at_least_s=0.1 if context.is_small else 2.0)
        mode = "lazy" if vendor.is_lazy() else "eager"
        about = {"row": "steps", "step": name, "mode": mode, "is_small": context.is_small}
        tell({**about, **row, "seconds": seconds})


def _trained(model: Any, batch: dict[str, torch.Tensor], device: torch.device) -> Made:
    """Returns a step in bfloat16 by autocast: forward, backward, AdamW."""
    model = model.to(device).train()
    batch = {name: each.to(device) for name, each in batch.items()}
    weights = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-5)

    def step() -> None:
        with torch.autocast("hpu", torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Made(step, model, {"samples": len(batch["labels"])})


def _ids(batch_size: int, length: int, vocabulary: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(5, vocabulary, (batch_size, length), generator=generator)


def _bert(device: torch.device, is_small: bool) -> Made:
    from transformers import BertConfig, BertForMaskedLM

    sizes: dict[str, Any] = (
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        | {"intermediate_size": 64, "vocab_size": 128}
        if is_small
        else {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
        | {"intermediate_size": 4096}
    )
    config = BertConfig(**sizes)
    batch_size, length = (2, 16) if is_small else (16, 512)
    ids = _ids(batch_size, length, config.vocab_size)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    batch["token_type_ids"] = torch.zeros_like(ids)
    return _trained(BertForMaskedLM(config), batch, device)


def _t5(device: torch.device, is_small: bool) -> Made:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    config = T5Config(**(sizes | {"vocab_size": 128} if is_small else {}))
    config.decoder_start_token_id = 0
    batch_size, length = (2, 16) if is_small else (16, 512)
    ids = _ids(batch_size, length, config.vocab_size)
    batch = {"input_ids": ids, "labels": ids[:, : length // 4]}
    return _trained(T5ForConditionalGeneration(config), batch, device)


class _LowRank(torch.nn.Module):
    """A linear layer whose weights are frozen, with a product of two small layers beside it."""

    def __init__(self, layer: torch.nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = torch.nn.Linear(layer.in_features, rank, bias=False)
        self.up = torch.nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x) + self.up(self.down(x))
        return found


def _llama(is_small: bool) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = (
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
        | {"intermediate_size": 64, "vocab_size": 128, "num_key_value_heads": 4}
        if is_small
        else {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32}
        | {"intermediate_size": 8192, "vocab_size": 32000, "num_key_value_heads": 8}
    )
    return LlamaForCausalLM(LlamaConfig(**sizes))


def _lora(device: torch.device, is_small: bool) -> Made:
    model = _llama(is_small).to(torch.bfloat16).requires_grad_(False)
    for block in model.model.layers:
        for name in ("q_proj", "v_proj"):
            layer = getattr(block.self_attn, name)
            setattr(block.self_attn, name, _LowRank(layer, 8).to(torch.bfloat16))
    batch_size, length = (2, 16) if is_small else (8, 512)
    ids = _ids(batch_size, length, model.config.vocab_size)
    return _trained(model, {"input_ids": ids, "labels": ids}, device)


def _decoding(device: torch.device, is_small: bool) -> Made:
    """A text of 100 tokens behind a short prompt, as public runs write: in lazy mode by a graph."""
    model = _llama(is_small).to(device, torch.bfloat16).eval()
    # Compiled, it would take minutes: eager mode has its operators one by one.
    engine: Any = "graph" if vendor.is_lazy() else "none"
    generator = TextGenerator(model, engine, [8], pad_token_id=0, eos_token_id=[])
    tokens = 4 if is_small else 100
    ids = _ids(1, 8, model.config.vocab_size).to(device)

    def step() -> object:
        return generator(ids, torch.ones_like(ids), tokens, check_prompts=False)

    return Made(step, model, {"tokens": tokens})


STEPS: dict[str, Callable[[torch.device, bool], Made]] = {
    "BERT-large": _bert,
    "T5-small": _t5,
    "LoRA": _lora,
    "decoding": _decoding,
}
"""By name: what makes a step on a device, small or as large as it is for a card."""
