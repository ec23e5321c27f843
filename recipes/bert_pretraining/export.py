"""From a checkpoint to a folder that `transformers.AutoModel.from_pretrained` loads."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from recipes.bert_pretraining.data import BertData
from recipes.bert_pretraining.module import BertPretraining
from recipes.bert_pretraining.tokenization import load_tokenizer, tokenizer_from_json


def export(checkpoint: Path, output: Path) -> None:
    """Write model.safetensors, config.json and the tokenizer; no card is needed.

    Args:
        checkpoint: what a fit wrote, on any device.
        output: the folder to write, made if it is not there.

    Raises:
        ValueError: if there is no such checkpoint, or it is none of this recipe.
    """
    if not checkpoint.is_file():
        raise ValueError(
            f"--checkpoint {checkpoint} does not exist. Name a .ckpt file that `fit` wrote."
        )
    content = torch.load(checkpoint, map_location="cpu", weights_only=True)
    try:
        data_settings = content[BertData.CHECKPOINT_HYPER_PARAMS_KEY]
        tokenizer_state = content.get(BertData.__qualname__, {})
    except KeyError as error:
        raise ValueError(
            f"--checkpoint {checkpoint} was not written by `fit` of this recipe: it has no {error}."
        ) from error
    module = BertPretraining.load_from_checkpoint(checkpoint, map_location="cpu", weights_only=True)
    module.model.save_pretrained(output)
    if "tokenizer" in tokenizer_state:
        tokenizer = tokenizer_from_json(tokenizer_state["tokenizer"])
    else:
        tokenizer = load_tokenizer(data_settings["tokenizer"])
    tokenizer.save_pretrained(output)


def main(args: Sequence[str]) -> None:
    """The command line of `export`."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.bert_pretraining export", description=__doc__
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="a .ckpt file of a fit")
    parser.add_argument("--output", type=Path, required=True, help="the folder to write")
    arguments = parser.parse_args(args)
    try:
        export(arguments.checkpoint, arguments.output)
    except ValueError as error:
        parser.error(str(error))
    print(f"Exported to {arguments.output}: AutoModel.from_pretrained('{arguments.output}')")
