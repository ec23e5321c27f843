"""Tiny random models in diffusers' layout, in the shapes of Stable Diffusion 1, 2 and XL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    EulerDiscreteScheduler,
    PNDMScheduler,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
)

from recipes.text_to_image.scratch import make_tokenizer

KINDS = ("sd1", "sd2", "sdxl")
WIDTH = 32
_NOISE = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}
_SCHEDULERS = {
    "sd1": lambda: PNDMScheduler(**_NOISE, skip_prk_steps=True, steps_offset=1),
    "sd2": lambda: DDIMScheduler(
        **_NOISE, prediction_type="v_prediction", clip_sample=False, steps_offset=1
    ),
    "sdxl": lambda: EulerDiscreteScheduler(**_NOISE, timestep_spacing="leading", steps_offset=1),
}


def make_unet(kind: str = "sd1", seed: int = 0) -> UNet2DConditionModel:
    """A UNet of latents [4, 8, 8], in evaluation mode."""
    torch.manual_seed(seed)
    settings: dict[str, Any] = {"attention_head_dim": 2}
    width = WIDTH
    if kind != "sd1":
        settings = {"attention_head_dim": (2, 4), "use_linear_projection": True}
    if kind == "sdxl":
        width = 2 * WIDTH
        settings |= {
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 8,
            "projection_class_embeddings_input_dim": WIDTH + 6 * 8,
            "transformer_layers_per_block": (1, 2),
        }
    return UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=width,
        norm_num_groups=8,
        **settings,
    ).eval()


def make_pipeline(kind: str, seed: int = 0) -> Any:
    """diffusers' own pipeline of random weights, on the CPU; its VAE halves a picture once."""
    unet, tokenizer = make_unet(kind, seed), make_tokenizer()
    parts = {
        "unet": unet,
        "vae": _vae(),
        "tokenizer": tokenizer,
        "text_encoder": _text_encoder(tokenizer, CLIPTextModel),
        "scheduler": _SCHEDULERS[kind](),
    }
    if kind == "sdxl":
        second = _text_encoder(tokenizer, CLIPTextModelWithProjection)
        pipeline = StableDiffusionXLPipeline(
            **parts, tokenizer_2=make_tokenizer(), text_encoder_2=second, add_watermarker=False
        )
    else:
        pipeline = StableDiffusionPipeline(
            **parts, safety_checker=None, feature_extractor=None, requires_safety_checker=False
        )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def save_pipeline(kind: str, folder: Path) -> str:
    """Write it in diffusers' layout; returns the folder as a setting has it."""
    make_pipeline(kind).save_pretrained(folder)
    return str(folder)


def _text_encoder(tokenizer: CLIPTokenizer, kind: Any) -> Any:
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        projection_dim=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=tokenizer.model_max_length,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return kind(config).eval()


def _vae() -> AutoencoderKL:
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 16),
        latent_channels=4,
        norm_num_groups=4,
        sample_size=16,
    ).eval()
