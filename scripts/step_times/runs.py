"""The public runs that predicted step times are fitted to, and the rule by which they are chosen.

Training, the rule. A figure of the sources is a row of `training.csv` if

- it is a rate of training in samples a second, on one card or the eight of one server;
- its source states card, number of cards, batch, accumulation, length and strategy;
- every sample has that length, because samples are packed or padded to it;
- the model is a dense transformer of one stack, of texts or of patches of pictures, and trains all
  weights, or adapters of peft that are in each of its layers;
- it computes in bfloat16, in lazy mode or compiled, not operator by operator;
- its software is 1.20 or newer;
- it is not the same number, to the last digit, as that of another generation: one is a copy.

Decoding, the rule. A figure is a row of `decoding.csv` if it is a rate of new tokens, on one card,
in bfloat16 with HPU graphs, of a dense decoder of transformers whose sizes are published, with 100
new tokens and a prompt of tens of tokens, and is no copy either.

Models of the same sizes are one family, and are left out together: roberta-large is bert-large.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Model:
    """The sizes of a model."""

    kind: str
    """The name of its configuration in transformers."""
    layers: int
    settings: dict[str, Any]
    family: str = ""
    """That of another one of the same sizes; empty if it has a name of its own."""
    layers_name: str = "num_hidden_layers"


def _llama_like(kind: str, hidden: int, inner: int, heads: int, layers: int, vocab: int,
                family: str = "", **more: Any) -> Model:
    settings = {"hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": heads}
    settings |= {"num_key_value_heads": heads, "vocab_size": vocab, "pad_token_id": 0}
    return Model(kind, layers, settings | more, family)


_BERT_LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}

MODELS = {
    "bert-large": Model("bert", 24, {**_BERT_LARGE, "vocab_size": 30522}),
    "roberta-large": Model(
        "roberta", 24,
        {**_BERT_LARGE, "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1},
        "bert-large",
    ),
    "vit-base": Model("vit", 12, {"num_labels": 10}),
    "gpt2-xl": Model(
        "gpt2", 48, {"n_embd": 1600, "n_head": 25, "vocab_size": 50257}, layers_name="n_layer"
    ),
    "llama-7b": _llama_like("llama", 4096, 11008, 32, 32, 32000),
    "llama-guard-7b": _llama_like("llama", 4096, 11008, 32, 32, 32000, "llama-7b"),
    "llama-2-7b": _llama_like("llama", 4096, 11008, 32, 32, 32000, "llama-7b"),
    "code-llama-13b": _llama_like("llama", 5120, 13824, 40, 40, 32016),
    "gemma-2b": _llama_like(
        "gemma", 2048, 16384, 8, 18, 256000, num_key_value_heads=1, head_dim=256
    ),
    "gpt-neox-20b": _llama_like("gpt_neox", 6144, 24576, 64, 44, 50432),
    "qwen2-7b": _llama_like("qwen2", 3584, 18944, 28, 28, 152064, num_key_value_heads=4),
    "qwen3-8b": _llama_like(
        "qwen3", 4096, 12288, 32, 36, 151936, num_key_value_heads=8, head_dim=128
    ),
    "bloom-7b1": Model(
        "bloom", 30, {"hidden_size": 4096, "n_head": 32, "vocab_size": 250880},
        layers_name="n_layer",
    ),
    "chatglm3-6b": _llama_like(
        "glm", 4096, 13696, 32, 28, 65024, num_key_value_heads=2, head_dim=128
    ),
    "falcon-40b": Model(
        "falcon", 60,
        {"hidden_size": 8192, "num_attention_heads": 128, "num_kv_heads": 8,
         "new_decoder_architecture": True, "vocab_size": 65024},
    ),
}
"""By the name in the files. Source: each model's configuration on its publisher's page; ChatGLM3's
own code is not in transformers, whose GLM has the same layers."""


@dataclass(frozen=True)
class Run:
    """A published training."""

    card: str
    model: str
    head: str
    """Of which of transformers' auto classes it is: "CausalLM", ..."""
    cards: int
    batch: int
    """Of each card, in one forward."""
    accumulation: int
    length: int
    strategy: str
    """"one", "ddp", "fsdp", "zero1", "zero2" or "zero3"."""
    is_checkpointed: bool
    adapter: str
    """A kind of peft's, or "" where all weights are trained."""
    targets: str
    rank: int
    is_flash: bool
    """Whether its attention is one fused kernel."""
    rate: float
    """Samples a second of all cards."""
    name: str
    """The test of the source that has it."""

    @property
    def family(self) -> str:
        """Its model, or the one that has the same sizes."""
        return MODELS[self.model].family or self.model

    @property
    def is_autocast(self) -> bool:
        """Whether weights are float32: DeepSpeed keeps, and adapters are beside, bfloat16."""
        return not self.adapter and not self.strategy.startswith("zero")

    @property
    def key(self) -> str:
        """What counts depend on."""
        parts = (self.model, self.head, self.batch, self.length, self.is_checkpointed)
        more = (self.adapter, self.targets, self.rank, self.is_flash, self.is_autocast)
        return " ".join(map(str, (*parts, *more)))

    @property
    def seconds(self) -> float:
        """Of a step of the optimizer."""
        return self.cards * self.batch * self.accumulation / self.rate


def read_runs() -> list[Run]:
    """Returns the trainings of the file, in its order."""
    with (FOLDER / "training.csv").open() as file:
        rows = [*csv.DictReader(file)]
    return [
        Run(
            row["card"], row["model"], row["head"], int(row["cards"]), int(row["batch"]),
            int(row["accumulation"]), int(row["length"]), row["strategy"],
            row["checkpointed"] == "yes", row["adapter"], row["targets"],
            int(row["rank"] or 0), row["flash"] == "yes", float(row["samples_per_s"]), row["name"],
        )
        for row in rows
    ]
