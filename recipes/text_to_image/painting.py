"""Turns prompts into pictures: text encoders, UNet and VAE run one after another.

The UNet's step alone is captured or compiled (`lightning_gaudi.inference`); text encoders and VAE
run once a batch. Nothing waits for the device before the pictures are there.

Shapes: B pictures, T tokens of a prompt, D hidden, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_gaudi.inference import Denoiser, Engine, draw_latents, make_scheduler
from recipes.common.errors import UserError
from recipes.text_to_image.parts import Loaded, Parts, default_dtype
from recipes.text_to_image.requests import Request

_MAX_SHOWN = 60


@dataclass(frozen=True)
class PaintingSettings:
    """Holds the settings of how pictures are made; see `TextToImage`."""

    scheduler: str | None = None
    num_inference_steps: int = 25
    guidance: float = 7.5
    height: int | None = None
    width: int | None = None
    engine: Engine = "auto"


class Painter:
    """Paints batches, all of which have the same number of pictures.

    Args:
        parts: the model's weights, on their device, in evaluation mode.
        loaded: the model's tokenizers and scheduler.
        settings: how pictures are made.

    Raises:
        UserError: The scheduler is unknown, the VAE cannot make pictures of the size, or the device
            does not have the engine.
    """

    def __init__(self, parts: Parts, loaded: Loaded, settings: PaintingSettings) -> None:
        self._parts, self._loaded, self._settings = parts, loaded, settings
        self.latent_shape = parts.latent_shape(settings.height, settings.width)
        try:
            scheduler = make_scheduler(settings.scheduler, loaded.scheduler)
            self._denoiser = Denoiser(
                parts.unet,
                scheduler,
                settings.num_inference_steps,
                settings.guidance,
                settings.engine,
            )
        except ValueError as error:
            raise UserError(f"model: {error}") from error

    @property
    def description(self) -> list[tuple[str, str]]:
        """Lines of a report on how pictures are made."""
        settings, scheduler = self._settings, type(self._denoiser.scheduler).__name__
        height, width = (side * self._parts.factor for side in self.latent_shape[1:])
        return [
            ("size", f"{width}x{height} pixels"),
            ("denoising", f"{scheduler}, {settings.num_inference_steps} steps"),
            ("guidance", f"{settings.guidance:g}"),
        ]

    @torch.no_grad()
    def paint(self, requests: Sequence[Request]) -> Tensor:
        """Returns pictures [B, 3, H, W], float32 from 0 to 1, on the device."""
        device = self._parts.unet.device
        with default_dtype(torch.float32):
            latents, generators = draw_latents([each.seed for each in requests], self.latent_shape)
            embeddings, added = self._encode(requests, device)
            latents = self._denoiser(latents.to(device), embeddings, added, generators)
            return self._decode(latents)

    def check_lengths(self, requests: Sequence[Request]) -> None:
        """Warns of prompts that are longer than the text encoder can read, and of what is lost."""
        tokenizer = self._loaded.tokenizers[0]
        limit = tokenizer.model_max_length
        texts = dict.fromkeys(
            text for each in requests for text in (each.prompt, each.negative_prompt) if text
        )
        for text in texts:
            tokens = tokenizer(text, verbose=False).input_ids
            if len(tokens) > limit:
                left = tokenizer.decode(tokens[limit - 1 : -1]).strip()
                rank_zero_warn(
                    f"The prompt {_shortened(text)!r} has {len(tokens)} tokens, and the text "
                    f"encoder reads {limit} at most: it ignores {left!r}. Shorten the prompt."
                )

    def _encode(
        self, requests: Sequence[Request], device: torch.device
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the prompts' embeddings, and what else SDXL's UNet is given.

        The embeddings are [2 B, T, D] under guidance, with the negative prompts first; otherwise
        [B, T, D].
        """
        texts = [each.prompt for each in requests]
        if self._denoiser.is_guided:
            texts = [*((each.negative_prompt or "") for each in requests), *texts]
        pairs = zip(self._loaded.tokenizers, self._parts.text_encoders, strict=True)
        if not self._loaded.is_xl:
            ((tokenizer, encoder),) = pairs
            return encoder(**_tokens(tokenizer, encoder, texts, device))[0], {}
        outputs = [
            encoder(**_tokens(tokenizer, encoder, texts, device), output_hidden_states=True)
            for tokenizer, encoder in pairs
        ]
        # SDXL takes the last layer but one of both encoders, and the pooled output of the second.
        embeddings = torch.cat([each.hidden_states[-2] for each in outputs], dim=-1)
        pooled = outputs[-1][0]
        has_none = all(each.negative_prompt is None for each in requests)
        if (
            self._denoiser.is_guided
            and has_none
            and self._loaded.index.get("force_zeros_for_empty_prompt", True)
        ):
            # These models were trained with zeros, not with an encoded "", for no prompt.
            kept = torch.ones(len(texts), device=device, dtype=embeddings.dtype)
            kept[: len(requests)] = 0
            embeddings, pooled = embeddings * kept[:, None, None], pooled * kept[:, None]
        height, width = (side * self._parts.factor for side in self.latent_shape[1:])
        # The original size, the place of the crop's corner, and the target size.
        sizes = torch.tensor([[height, width, 0, 0, height, width]], dtype=embeddings.dtype)
        time_ids = sizes.to(device).expand(len(texts), -1)
        return embeddings, {"text_embeds": pooled, "time_ids": time_ids}

    def _decode(self, latents: Tensor) -> Tensor:
        vae = self._parts.vae
        if vae is None:
            return (latents / 2 + 0.5).clamp(0, 1)
        latents = latents.to(vae.dtype) / vae.config.scaling_factor
        pictures: Tensor = vae.decode(latents, return_dict=False)[0]
        return (pictures.float() / 2 + 0.5).clamp(0, 1)


def _tokens(
    tokenizer: Any, encoder: Any, texts: list[str], device: torch.device
) -> dict[str, Tensor]:
    """Returns the encoder's inputs, padded or cut to a fixed length."""
    tokens = tokenizer(
        texts,
        padding="max_length",
        max_length=tokenizer.model_max_length,
        truncation=True,
        return_tensors="pt",
    )
    given = {"input_ids": tokens.input_ids.to(device)}
    if getattr(encoder.config, "use_attention_mask", False):
        given["attention_mask"] = tokens.attention_mask.to(device)
    return given


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
