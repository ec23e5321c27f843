"""Small models of several families, their tokenizer, and rows to learn from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import seed_everything
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    PhiConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen3Config,
)

from recipes.common.tokenization import train_byte_bpe
from recipes.llm_finetuning.data import CHAT_TOKENS, LlmData
from recipes.llm_finetuning.embedded import embedded_conversations, embedded_preferences
from recipes.llm_finetuning.encoding import CHATML
from recipes.llm_finetuning.module import LlmFinetuning

VOCABULARY = 320
_SIZES = {
    **{"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "initializer_range": 0.2},
    **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3},
}
_GROUPED = {"num_key_value_heads": 2}
FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**_SIZES, **_GROUPED),
    "qwen2": lambda: Qwen2Config(**_SIZES, **_GROUPED),
    "qwen3": lambda: Qwen3Config(**_SIZES, **_GROUPED, head_dim=8),
    "mistral": lambda: MistralConfig(**_SIZES, **_GROUPED, sliding_window=256),
    "gemma2": lambda: Gemma2Config(**_SIZES, **_GROUPED, head_dim=8, query_pre_attn_scalar=8),
    "phi": lambda: PhiConfig(**_SIZES),
    "gpt_neox": lambda: GPTNeoXConfig(**_SIZES),
    "mixtral": lambda: MixtralConfig(**_SIZES, **_GROUPED, num_local_experts=2),
}


def make_model(family: str = "llama", seed: int = 0) -> PreTrainedModel:
    """A small model with random weights, the same each time."""
    with torch.random.fork_rng():
        seed_everything(seed, verbose=False)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(FAMILIES[family]())
    return model.eval()


def make_tokenizer() -> PreTrainedTokenizerBase:
    """A small vocabulary with a chat template."""
    texts = [each.content for row in embedded_conversations("test", 0) for each in row.messages]
    tokenizer = train_byte_bpe([texts], VOCABULARY, CHAT_TOKENS, splits_digits=True)
    tokenizer.chat_template = CHATML
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return make_tokenizer()


@pytest.fixture(scope="session")
def save(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Makes folders with a model and its tokenizer, as `save_pretrained` writes them."""

    def save(family: str = "llama", seed: int = 0) -> str:
        folder = tmp_path_factory.mktemp(family)
        make_model(family, seed).save_pretrained(folder)
        make_tokenizer().save_pretrained(folder)
        return str(folder)

    return save


@pytest.fixture(scope="session")
def base(save: Callable[..., str]) -> str:
    """A folder with a small Llama."""
    return save()


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of conversations, of several lengths."""
    folder = tmp_path_factory.mktemp("rows")
    for split, number in (("train", 96), ("validation", 24), ("test", 12)):
        lines = [
            json.dumps({"messages": [each._asdict() for each in row.messages]})
            for row in embedded_conversations(split, 0)[:number]
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of preferences."""
    folder = tmp_path_factory.mktemp("pairs")
    for split, number in (("train", 48), ("validation", 16), ("test", 8)):
        lines = [
            json.dumps({"prompt": a.question[-1].content, "chosen": a.answer, "rejected": b.answer})
            for a, b in embedded_preferences(split, 0)[:number]
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    return folder


def make_module(folder: str, **settings: Any) -> LlmFinetuning:
    """The recipe's module with the model of a folder, as a Trainer has it; in evaluation mode."""
    module = LlmFinetuning(name=folder, tokenizer=folder, **settings)
    module.configure_model()
    return module.eval()


def small_data(folder: str, rows: Path, **settings: Any) -> LlmData:
    """The data of a small run; keyword arguments override it."""
    small = {"source": "path", "path": str(rows), "tokenizer": folder, "batch_size": 2}
    return LlmData(**{**small, "max_length": 64, "prompt_buckets": [64], **settings})
