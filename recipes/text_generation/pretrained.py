"""Loads a published model: made on meta, cut up for several cards, then read by weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from lightning_gaudi.inference import check_fits, load_weights, memory_table
from recipes.common.errors import UserError, first_line
from recipes.common.hub import load_pretrained

_FILES = ("*.safetensors", "*.json")


def make_on_meta(name: str, dtype: torch.dtype, attention: str | None) -> PreTrainedModel:
    """Returns the model without its weights.

    Args:
        name: on the hub or in its cache, or a folder.
        dtype: of the weights.
        attention: transformers' `attn_implementation`; None for its default.

    Raises:
        UserError: if there is no such model, or it is no decoder-only one.
    """
    config = load_pretrained(AutoConfig, "model.name", name)
    options = {} if attention is None else {"attn_implementation": attention}
    try:
        if config.is_encoder_decoder:
            raise ValueError("it has an encoder.")
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, **options)
    except (ValueError, ImportError) as error:
        raise UserError(
            f"model.name={name} is a {config.model_type} model, which cannot generate text here: "
            f"{' '.join(str(error).split())} Name a decoder-only language model, such as "
            "bigscience/bloomz-7b1."
        ) from error
    model.to(dtype)
    _take_generation_config(model, name)
    return model


def download(name: str) -> None:
    """Brings configuration and weights into the hub's cache; a folder is left as it is."""
    folder_of(name, is_local=False)


def folder_of(name: str, is_local: bool = True) -> Path:
    """Returns where the files of a model are.

    Args:
        name: a folder, or on the hub.
        is_local: take what `download` brought, and ask no server.

    Raises:
        UserError: if they cannot be had.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=_FILES, local_files_only=is_local))
    except (OSError, ValueError) as error:
        raise UserError(
            f"model.name={name} could not be downloaded: {first_line(error)} Check the name and "
            f"the network. Without a network, download it where there is one (`hf download {name} "
            "--local-dir FOLDER`) and set model.name=FOLDER data.tokenizer=FOLDER."
        ) from error


def check_memory(
    model: PreTrainedModel, num_cards: int, batch_size: int, num_tokens: int, capacity: int | None
) -> None:
    """Tells what a card will hold, and refuses what it cannot hold, before anything is loaded.

    Args:
        model: whole.
        num_cards: that it is cut up for.
        batch_size: prompts of a batch.
        num_tokens: of a prompt and what follows.
        capacity: bytes of a card; None where nobody knows, as on the CPU.

    Raises:
        UserError: with need and have.
    """
    try:
        table = memory_table(model.config, num_cards, batch_size, num_tokens, model.dtype)
        rank_zero_info(f"\n{table}\n")
        if capacity is not None:
            check_fits(table, capacity)
    except ValueError as error:
        raise UserError(str(error)) from error


def load(model: PreTrainedModel, name: str, device: torch.device) -> None:
    """Reads the weights, or this card's part of them, and puts them on it.

    Raises:
        UserError: for a file that is missing or wrong.
    """
    try:
        load_weights(model, folder_of(name), device)
    except ValueError as error:
        raise UserError(f"model.name={name}: {error}") from error


def _take_generation_config(model: Any, name: str) -> None:
    """Reads the file of generation, which alone may have the end of a text; many have no such."""
    try:
        path = Path(name).expanduser()
        source = str(path) if path.is_dir() else name
        model.generation_config = GenerationConfig.from_pretrained(source)
    except OSError:
        return
