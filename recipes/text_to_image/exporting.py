"""Turns a checkpoint into a folder in diffusers' layout, which `predict` and diffusers load."""

from __future__ import annotations

import json
from pathlib import Path

from recipes.common.export import read_checkpoint
from recipes.text_to_image.module import TextToImage
from recipes.text_to_image.parts import INDEX

_NOTHING = [None, None]


def export(checkpoint: Path, output: Path) -> str:
    """Writes model_index.json, tokenizer, text_encoder, unet and scheduler.

    There is no VAE: the latents of this model are its pictures.

    Args:
        checkpoint: what a fit wrote, on any device.
        output: the folder to write, made if it is not there.

    Returns:
        How to load it.

    Raises:
        UserError: if there is no such checkpoint, or this recipe has not written it.
    """
    content = read_checkpoint(checkpoint, ("hyper_parameters", "state_dict"))
    # Lightning's command line adds an entry of its own.
    settings = content["hyper_parameters"].items()
    module = TextToImage(**{key: value for key, value in settings if not key.startswith("_")})
    module.load_state_dict(content["state_dict"])
    loaded, model = module.loaded, module.model
    assert loaded is not None
    output.mkdir(parents=True, exist_ok=True)
    loaded.tokenizers[0].save_pretrained(output / "tokenizer")
    model.text_encoders[0].save_pretrained(output / "text_encoder")
    model.unet.save_pretrained(output / "unet")
    (output / "scheduler").mkdir(exist_ok=True)
    _write(output / "scheduler" / "scheduler_config.json", dict(loaded.scheduler))
    index = {
        "_class_name": "StableDiffusionPipeline",
        "feature_extractor": _NOTHING,
        "image_encoder": _NOTHING,
        "requires_safety_checker": False,
        "safety_checker": _NOTHING,
        "scheduler": ["diffusers", loaded.scheduler["_class_name"]],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": _NOTHING,
    }
    _write(output / INDEX, index)
    return f"predict --model.name={output}"


def _write(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
