"""Exports a checkpoint to a folder that transformers' `from_pretrained` loads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from lightning_gaudi.untrusted import parse_json, printable
from recipes.common.errors import UserError, first_line
from recipes.common.hub import load_pretrained
from recipes.common.tokenization import tokenizer_from_state
from recipes.common.training import CLASS_KEY, CONFIG_KEY

_DATA_SETTINGS = "datamodule_hyper_parameters"
_PREFIX = "model."
_SMALL = 2**16
"""Smaller numbers in a configuration may be ids of tokens or lengths, and not sizes."""
_FROM_ELSEWHERE = {
    *("_attn_implementation", "attn_implementation", "_experts_implementation"),
    *("auto_map", "experts_implementation"),
}
"""The keys of a configuration that may name code of the hub, which an export does not need."""


def export(checkpoint: Path, output: Path) -> str:
    """Writes model.safetensors, config.json and the tokenizer; no card and no network is needed.

    Args:
        checkpoint: what a fit wrote, on any device.
        output: the folder to write, made if it is not there.

    Returns:
        How to load it.

    Raises:
        UserError: see `read_checkpoint`.
    """
    content = read_checkpoint(checkpoint, (CONFIG_KEY, CLASS_KEY, "state_dict"))
    _model(content).save_pretrained(output)
    tokenizer_of(content).save_pretrained(output)
    _name_for_transformers_4(output / "tokenizer_config.json")
    return f"transformers.{content[CLASS_KEY]}.from_pretrained('{output}')"


def read_checkpoint(checkpoint: Path, keys: Sequence[str]) -> dict[str, Any]:
    """Returns the content of a checkpoint that a recipe's fit wrote.

    Args:
        checkpoint: the file, of `place_of`.
        keys: what must be in it.

    Raises:
        UserError: if there is no such checkpoint, it is in shards, cannot be read, or the recipe
            did not write it.
    """
    try:
        is_folder, is_file = checkpoint.is_dir(), checkpoint.is_file()
    except Exception as error:  # each store has its own types of errors
        raise UserError(
            f"--checkpoint {checkpoint} cannot be reached: {first_line(error)}"
        ) from error
    if is_folder:
        raise UserError(
            f"--checkpoint {checkpoint} is a folder of shards. Make one file of it first: "
            f"lightning-gaudi consolidate {checkpoint} {checkpoint.stem}-whole.ckpt"
        )
    if not is_file:
        raise UserError(
            f"--checkpoint {checkpoint} does not exist. Name a .ckpt file that `fit` wrote."
        )
    try:
        with checkpoint.open("rb") as file:
            content: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch has no type for a file that is damaged
        raise UserError(
            f"--checkpoint {checkpoint} cannot be read as a checkpoint: {first_line(error)} Copy "
            "it again from where it was saved, or name another."
        ) from error
    missing = [key for key in keys if not isinstance(content, dict) or key not in content]
    if missing:
        raise UserError(
            f"--checkpoint {checkpoint} was not written by `fit` of a recipe: it has no "
            f"{', '.join(missing)}."
        )
    return content


def _model(content: dict[str, Any]) -> transformers.PreTrainedModel:
    cls = getattr(transformers, str(content[CLASS_KEY]), None)
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise UserError(
            f"The checkpoint is of a model {printable(content[CLASS_KEY], max_chars=200)}, which "
            "is no class of transformers' models. Pass one that `fit` of a recipe wrote."
        )
    try:
        config = parse_json(content[CONFIG_KEY])
        for name in _FROM_ELSEWHERE & {*config}:
            del config[name]
        weights = {
            name.removeprefix(_PREFIX): weight
            for name, weight in content["state_dict"].items()
            if name.startswith(_PREFIX)
        }
        _check_sizes(config, weights)
        model = cls(cls.config_class.from_dict(config))
        model.load_state_dict(weights)
    except Exception as error:  # transformers has no type for a configuration that is damaged
        raise UserError(
            f"The checkpoint's configuration and weights make no {cls.__name__}: "
            f"{first_line(error)} Name a checkpoint that `fit` wrote, as it was written."
        ) from error
    return model


def _check_sizes(config: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
    """Refuses a configuration of a model that is larger than its weights, before it is built."""
    num_values = sum(weight.numel() for weight in weights.values())
    for name, value in config.items():
        limit = len(weights) if "layers" in name else max(num_values, _SMALL)
        if isinstance(value, int) and value > limit:
            raise UserError(f"{name}={printable(value, max_chars=20)} is more than they have.")


def tokenizer_of(content: dict[str, Any]) -> transformers.PreTrainedTokenizerBase:
    """Returns the tokenizer that was trained with the model, or the published one it was given."""
    for state in content.values():
        if isinstance(state, dict) and "tokenizer" in state and "special_tokens" in state:
            return tokenizer_from_state(state)
    settings = content.get(_DATA_SETTINGS)
    name = settings.get("tokenizer") if isinstance(settings, dict) else None
    if not isinstance(name, str):
        raise UserError("The checkpoint has no tokenizer. Name one that `fit` of a recipe wrote.")
    return load_pretrained(transformers.AutoTokenizer, "data.tokenizer", name)


def _name_for_transformers_4(config: Path) -> None:
    """Writes a name of the tokenizer's class that transformers 4 and 5 know; 5 has a new one."""
    settings = json.loads(config.read_text(encoding="utf-8"))
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        config.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
