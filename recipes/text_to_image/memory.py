"""Tells what a published model takes of a card, before its weights are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lightning_gaudi.inference import MemoryTable, check_fits, parameter_bytes
from recipes.common.errors import UserError
from recipes.text_to_image.parts import without_weights


def memory_table(
    name: str,
    index: Mapping[str, Any],
    dtype: torch.dtype,
    batch_size: int,
    height: int | None = None,
    width: int | None = None,
) -> MemoryTable:
    """Returns what a card holds of a model; computed on meta, by its configurations alone.

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
        parts = without_weights(name, index)
    channels, rows, columns = parts.latent_shape(height, width)
    weights = {"text encoders": parts.text_encoders, "UNet": parts.unet, "VAE": parts.vae}
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
    """Refuses a model that a card cannot hold.

    Raises:
        UserError: with need and have.
    """
    try:
        check_fits(table, capacity_bytes)
    except ValueError as error:
        raise UserError(f"{error}\nThe model is whole on each card.") from error
