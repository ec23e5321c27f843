"""What a published model takes of a card, known before its weights are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import diffusers
import torch
import transformers
from torch import nn

from lightning_gaudi.inference import MemoryTable, check_fits, parameter_bytes
from recipes.common.errors import UserError
from recipes.text_to_image.parts import encoder_names, latent_shape, read_part


def memory_table(
    name: str,
    index: Mapping[str, Any],
    dtype: torch.dtype,
    batch_size: int,
    height: int | None = None,
    width: int | None = None,
) -> MemoryTable:
    """What a card holds of a model, computed on meta: nothing but its configurations is read.

    Not in it is what text encoders, UNet and VAE compute with.

    Args:
        name: of a repository of the hub, or a folder.
        index: its model_index.json.
        dtype: of the weights.
        batch_size: pictures at a time.
        height: in pixels; None for what the model was made for.
        width: likewise.

    Raises:
        UserError: naming the part whose configuration is missing, or the side that is wrong.
    """
    with torch.device("meta"):
        encoders = [_text_encoder(name, each, index[each][1]) for each in encoder_names(index)]
        unet = _from_config(diffusers.UNet2DConditionModel, name, "unet")
        has_vae = bool(index.get("vae", [None])[0])
        vae = _from_config(diffusers.AutoencoderKL, name, "vae") if has_vae else None
    channels, rows, columns = latent_shape(unet, vae, height, width)
    weights = {"text encoders": nn.ModuleList(encoders), "UNet": unet, "VAE": vae}
    sizes = {
        f"weights, {part}": parameter_bytes(module, dtype)
        for part, module in weights.items()
        if module is not None
    }
    # Schedulers compute in float32.
    sizes["latents"] = batch_size * channels * rows * columns * torch.float32.itemsize
    kind = str(dtype).removeprefix("torch.")
    return MemoryTable(f"{name} on 1 card, batch of {batch_size}, {kind}", 1, sizes)


def check_memory(table: MemoryTable, capacity_bytes: int) -> None:
    """Refuse what a card cannot hold.

    Raises:
        UserError: with need and have.
    """
    try:
        check_fits(table, capacity_bytes)
    except ValueError as error:
        raise UserError(f"{error}\nThe model is whole on each card.") from error


def _text_encoder(name: str, part: str, kind: str) -> nn.Module:
    config = read_part(transformers.CLIPTextConfig.from_pretrained, name, part)
    made: nn.Module = getattr(transformers, kind)(config)
    return made


def _from_config(kind: Any, name: str, part: str) -> Any:
    return kind.from_config(read_part(kind.load_config, name, part))
