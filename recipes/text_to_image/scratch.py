"""Makes a small, untrained text-to-image model of diffusers' UNet and transformers' CLIP."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import UNet2DConditionModel
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from recipes.text_to_image.digits import PAIRS, SIZE

NUM_TOKENS = 8
"""The length of captions, with the tokens of their beginning and end: "a red seven" has five."""
_START, _END = "<|startoftext|>", "<|endoftext|>"
_WORD_END = "</w>"
SCHEDULER: dict[str, Any] = {
    "_class_name": "DDIMScheduler",
    "num_train_timesteps": 1000,
    # In so small pictures little noise hides all: a linear schedule would have mostly such steps.
    "beta_schedule": "squaredcos_cap_v2",
    "prediction_type": "epsilon",
    "clip_sample": True,
    "set_alpha_to_one": True,
    "steps_offset": 0,
    "timestep_spacing": "trailing",
    "skip_prk_steps": True,
}
"""The noise schedule of training, in the format of diffusers' scheduler_config.json."""


def make_tokenizer() -> CLIPTokenizer:
    """Makes a tokenizer of CLIP's kind that has a token for each word of the captions."""
    words = sorted({word for pair in PAIRS for word in pair.caption.split()})
    model = Tokenizer(models.BPE(end_of_word_suffix=_WORD_END))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(
        vocab_size=10_000, end_of_word_suffix=_WORD_END, show_progress=False
    )
    model.train_from_iterator(words, trainer)
    merges = json.loads(model.to_str())["model"]["merges"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, *(f"{each}{_WORD_END}" for each in alphabet)]
    tokens += dict.fromkeys("".join(pair) for pair in merges)
    tokens += [_START, _END]
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = {token: index for index, token in enumerate(tokens)}
        path = Path(folder)
        (path / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
        lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
        (path / "merges.txt").write_text("\n".join(lines) + "\n", "utf-8")
        made: CLIPTokenizer = CLIPTokenizer.from_pretrained(folder, model_max_length=NUM_TOKENS)
    return made


def make_text_encoder(
    tokenizer: CLIPTokenizer, width: int, num_layers: int, num_heads: int
) -> CLIPTextModel:
    """Makes a small CLIP text encoder with large initial embeddings.

    With CLIP's own initial embeddings, which are small, the output of the layers would hide which
    word it is, and the pictures of all digits would look alike for thousands of steps.
    """
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        projection_dim=width,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        max_position_embeddings=NUM_TOKENS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    encoder = CLIPTextModel(config)
    # transformers 5 has no `text_model` between a text encoder and its embeddings.
    embeddings = getattr(encoder, "text_model", encoder).embeddings
    with torch.no_grad():
        embeddings.token_embedding.weight.normal_(0.0, 1.0)
        embeddings.position_embedding.weight.normal_(0.0, 0.2)
    return encoder


def make_unet(widths: Sequence[int], num_layers: int, text_width: int) -> UNet2DConditionModel:
    """Returns a UNet of pictures [3, 8, 8], whose sides it halves once for each further width.

    It attends to the caption where pictures are smallest, and each of its blocks gets the pooled
    caption beside the time.
    """
    return UNet2DConditionModel(
        sample_size=SIZE,
        in_channels=3,
        out_channels=3,
        block_out_channels=tuple(widths),
        layers_per_block=num_layers,
        down_block_types=("DownBlock2D",) * len(widths),
        mid_block_type="UNetMidBlock2DCrossAttn",
        up_block_types=("UpBlock2D",) * len(widths),
        cross_attention_dim=text_width,
        attention_head_dim=2,
        norm_num_groups=8,
        addition_embed_type="text",
        addition_embed_type_num_heads=4,
    )
