"""Small models that several cards can share, prompts, and what transformers generates of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lightning_gaudi.inference import TextGenerator, load_weights, parallelize

NUM_PROMPTS = 64
BUCKET = 16
NUM_TOKENS = 10
NUM_LAYERS = 2
PAD = 3
# A vocabulary that no number of cards divides; no text ends.
_COMMON: dict[str, Any] = {
    "vocab_size": 509,
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": None,
    "initializer_range": 0.2,
}
_LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}


def make(name: str) -> Any:
    """A model with weights drawn alike each time, on the CPU.

    Args:
        name: A type of model of transformers; "bloom6" has six heads.
    """
    import transformers as t

    llama = {**_LLAMA, **_COMMON}
    wide, narrow = {"hidden_size": 32, "n_head": 8}, {"hidden_size": 24, "n_head": 6}
    gpt2 = {"n_embd": 32, "n_head": 8, "n_positions": 128}
    kinds: dict[str, tuple[Any, Any]] = {
        "bloom": (t.BloomForCausalLM, t.BloomConfig(n_layer=NUM_LAYERS, **wide, **_COMMON)),
        "bloom6": (t.BloomForCausalLM, t.BloomConfig(n_layer=NUM_LAYERS, **narrow, **_COMMON)),
        "llama": (t.LlamaForCausalLM, t.LlamaConfig(**llama)),
        "qwen2": (t.Qwen2ForCausalLM, t.Qwen2Config(tie_word_embeddings=True, **llama)),
        "gpt2": (t.GPT2LMHeadModel, t.GPT2Config(n_layer=NUM_LAYERS, **gpt2, **_COMMON)),
    }
    kind, config = kinds[name]
    torch.manual_seed(1)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # biases would be zeros, and norms ones
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def prompts() -> tuple[Tensor, Tensor]:
    """Left-padded prompts of mixed lengths and their mask, (64, 16) each."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.full((NUM_PROMPTS, BUCKET), PAD)
    mask = torch.zeros_like(ids)
    for row in range(NUM_PROMPTS):
        length = 1 + row % BUCKET
        ids[row, -length:] = torch.randint(5, 509, (length,), generator=generator)
        mask[row, -length:] = 1
    return ids, mask


def save_with_reference(name: str, folder: Path) -> None:
    """Save a model, and what transformers generates of it on the CPU.

    Of all prompts in one batch, and of the second by itself and unpadded.
    """
    model = make(name)
    model.save_pretrained(folder)
    ids, mask = prompts()
    alone = ids[1:2, mask[1].bool()]
    found = [
        model.generate(
            input_ids=each,
            attention_mask=torch.ones_like(each) if seen is None else seen,
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        for each, seen in ((ids, mask), (alone, None))
    ]
    torch.save(
        {
            "tokens": found[0].sequences[:, BUCKET:],
            "logits": torch.stack(found[0].logits, 1),
            "alone": found[1].sequences[:, alone.shape[1] :],
            "alone_logits": torch.stack(found[1].logits, 1),
        },
        folder / "reference.pt",
    )


def on_cards(folder: Path, mesh: Any, **settings: Any) -> Any:
    """The model of a folder in float32, whatever it was saved in, in parts on this rank's card."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **settings)
    parallelize(model, mesh)
    load_weights(model, folder, mesh.device_type)
    return model.eval()


class Generation(LightningModule):
    """Generates of left-padded prompts.

    Args:
        folder: With the model.
        bucket: How wide prompts are.
        num_tokens: New tokens.
    """

    def __init__(self, folder: Path, bucket: int, num_tokens: int) -> None:
        super().__init__()
        self.folder, self.bucket, self.num_tokens = folder, bucket, num_tokens
        self.model: Any = None
        self.generator: TextGenerator | None = None
        self.logits: list[Tensor] = []

    def configure_model(self) -> None:
        if self.model is None:
            self.model = on_cards(self.folder, self.device_mesh["tensor_parallel"])

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.generator = self.generator or TextGenerator(self.model, buckets=(self.bucket,))
        logits: list[Tensor] = []
        tokens = self.generator(
            *batch, self.num_tokens, on_logits=lambda each: logits.append(each.cpu())
        )
        self.logits.append(torch.stack(logits, 1))
        return tokens.cpu()


def predict(
    folder: Path, num_ranks: int, batch: tuple[Tensor, Tensor], num_tokens: int = NUM_TOKENS
) -> tuple[Tensor, Tensor]:
    """Tokens (B, N) and logits (B, N, V) of `Trainer.predict`, eight prompts at a time."""
    trainer = Trainer(
        accelerator="hpu",
        devices=num_ranks,
        strategy=ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=num_ranks),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Generation(folder, batch[0].shape[1], num_tokens)
    tokens: Any = trainer.predict(module, DataLoader(TensorDataset(*batch), batch_size=8))
    return torch.cat(tokens), torch.cat(module.logits)
