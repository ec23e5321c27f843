"""Loads the parts of a text-to-image model in diffusers' layout, each by its library.

A folder (or a repository of the hub) has model_index.json, which names the class of each part, and
a folder for each part: tokenizer, text_encoder (SDXL has two of both), unet, vae, scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from torch import nn

from lightning_gaudi.inference import has_values
from recipes.common.errors import UserError, first_line

INDEX = "model_index.json"
_PIPELINES = ("StableDiffusionPipeline", "StableDiffusionXLPipeline")


class Parts(nn.Module):
    """Holds the weights of a model: text encoders, UNet and VAE.

    If there is no VAE, the UNet computes pictures instead of latents.
    """

    def __init__(
        self,
        text_encoders: list[nn.Module],
        unet: diffusers.UNet2DConditionModel,
        vae: diffusers.AutoencoderKL | None,
    ) -> None:
        super().__init__()
        self.text_encoders = nn.ModuleList(text_encoders)
        self.unet, self.vae = unet, vae

    @property
    def factor(self) -> int:
        """The number of pixels that a latent stands for along each side."""
        return _factor(self.vae)

    def latent_shape(self, height: int | None, width: int | None) -> tuple[int, int, int]:
        """Returns the shape of a picture's latents; see the function of this name."""
        return latent_shape(self.unet, self.vae, height, width)


@dataclass
class Loaded:
    """Holds what a model has beside its weights."""

    tokenizers: list[Any]
    """The tokenizers, one for each text encoder."""
    scheduler: Mapping[str, Any]
    """The configuration of its scheduler."""
    index: Mapping[str, Any] = field(default_factory=dict)
    """model_index.json."""

    @property
    def is_xl(self) -> bool:
        """Whether the UNet has SDXL's further conditions."""
        return len(self.tokenizers) > 1


def latent_shape(
    unet: Any, vae: Any, height: int | None, width: int | None
) -> tuple[int, int, int]:
    """Returns the shape of a picture's latents: channels, height and width.

    Args:
        unet: diffusers' UNet2DConditionModel, on any device.
        vae: diffusers' AutoencoderKL; None if the UNet computes pictures.
        height: the height of the picture, in pixels; None for the model's default.
        width: likewise.

    Raises:
        UserError: The height or the width is no multiple of the VAE's factor.
    """
    sample, factor = unet.config.sample_size, _factor(vae)
    sides = list(sample) if isinstance(sample, list | tuple) else [sample, sample]
    for place, (name, value) in enumerate((("height", height), ("width", width))):
        if value is None:
            continue
        if value < factor or value % factor:
            lower = max(value // factor, 1) * factor
            raise UserError(
                f"model.{name}={value} is no multiple of {factor}, the side of a latent of this "
                f"model in pixels. Set {lower} or {lower + factor}."
            )
        sides[place] = value // factor
    return (unet.config.in_channels, sides[0], sides[1])


def _factor(vae: Any) -> int:
    return 1 if vae is None else 2 ** (len(vae.config.block_out_channels) - 1)


def encoder_names(index: Mapping[str, Any]) -> list[str]:
    """Returns the names of a model's text encoders, given its model_index.json."""
    return [each for each in ("text_encoder", "text_encoder_2") if index.get(each, [None])[0]]


def read_index(name: str) -> dict[str, Any]:
    """Returns the content of model_index.json, from a folder or a repository of the hub.

    Raises:
        UserError: There is none, or it describes a kind of model that this recipe does not have.
    """
    folder = Path(name).expanduser()
    if folder.exists() and not (folder / INDEX).is_file():
        raise UserError(
            f"model.name={name} has no {INDEX}, so it is no model in diffusers' layout. Name "
            "a folder that `export` or a pipeline's `save_pretrained` wrote."
        )
    index = _load_index(str(folder) if folder.exists() else name)
    kind = index.get("_class_name")
    if kind not in _PIPELINES:
        raise UserError(
            f"model.name={name} is a {kind}, but this recipe can run "
            f"{' and '.join(_PIPELINES)}. Name a Stable Diffusion 1 or 2, or an SDXL."
        )
    return index


def load(
    name: str, dtype: torch.dtype, index: Mapping[str, Any] | None = None
) -> tuple[Parts, Loaded]:
    """Returns a published model, or one that `export` wrote, on the CPU.

    The safety checker of Stable Diffusion 1 is not loaded.

    Args:
        name: a repository of the hub, or a folder.
        dtype: the dtype of the weights.
        index: its model_index.json, if it has been read before.

    Raises:
        UserError: A part is missing or cannot be read.
    """
    index = index or read_index(name)
    names = encoder_names(index)
    tokenizers = [
        read_part(
            transformers.CLIPTokenizer.from_pretrained,
            name,
            each.replace("text_encoder", "tokenizer"),
        )
        for each in names
    ]
    scheduler = read_part(diffusers.DDIMScheduler.load_config, name, "scheduler")
    if has_values():
        parts = _with_weights(name, dtype, index)
    else:
        # A plan needs no values, and may be made on a machine that has the configurations only.
        with torch.device("cpu"), default_dtype(dtype):
            parts = without_weights(name, index)
    return parts.requires_grad_(False).eval(), Loaded(tokenizers, scheduler, index)


def without_weights(name: str, index: Mapping[str, Any]) -> Parts:
    """Returns new parts, made from their configurations on torch's current device.

    Raises:
        UserError: The configuration of a part is missing.
    """
    encoders = [_text_encoder(name, each, index[each][1]) for each in encoder_names(index)]
    unet = _from_config(diffusers.UNet2DConditionModel, name, "unet")
    vae = _from_config(diffusers.AutoencoderKL, name, "vae") if _has_vae(index) else None
    return Parts(encoders, unet, vae)


def _text_encoder(name: str, part: str, kind: str) -> nn.Module:
    config = read_part(transformers.CLIPTextConfig.from_pretrained, name, part)
    made: nn.Module = getattr(transformers, kind)(config)
    return made


def _from_config(kind: Any, name: str, part: str) -> Any:
    return kind.from_config(read_part(kind.load_config, name, part))


def _has_vae(index: Mapping[str, Any]) -> bool:
    return bool(index.get("vae", [None])[0])


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Sets torch's default dtype inside the context; with `precision=bf16-true` it is bfloat16."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _with_weights(name: str, dtype: torch.dtype, index: Mapping[str, Any]) -> Parts:
    encoders = [
        _weights(getattr(transformers, index[each][1]), name, each, dtype=dtype)
        for each in encoder_names(index)
    ]
    unet = _weights(diffusers.UNet2DConditionModel, name, "unet", torch_dtype=dtype)
    vae = None
    if _has_vae(index):
        vae = _weights(diffusers.AutoencoderKL, name, "vae", torch_dtype=dtype)
    return Parts(encoders, unet, vae)


def _weights(cls: Any, name: str, part: str, **options: Any) -> Any:
    # Lightning calls this with the card as torch's device, and to load weights on another device
    # than the CPU transformers would need the package accelerate.
    with torch.device("cpu"):
        model, info = read_part(
            cls.from_pretrained, name, part, output_loading_info=True, **options
        )
    if missing := sorted(info["missing_keys"]):
        raise UserError(
            f"model.name={name}: its {part} lacks the weight {missing[0]} and {len(missing) - 1} "
            "others. Download it anew."
        )
    return model


def read_part(read: Callable[..., Any], name: str, part: str, **options: Any) -> Any:
    """Returns a part of a model, read by a function that takes its place and a subfolder.

    Raises:
        UserError: The part cannot be read.
    """
    folder = Path(name).expanduser()
    try:
        return read(str(folder) if folder.is_dir() else name, subfolder=part, **options)
    except Exception as error:  # the error of safetensors derives from Exception alone
        raise UserError(
            f"model.name={name}: its {part} could not be read: {first_line(error)} Download it "
            "anew (`hf download NAME --local-dir FOLDER`), or name another model."
        ) from error


def _load_index(name: str) -> dict[str, Any]:
    try:
        return dict(diffusers.DiffusionPipeline.load_config(name))
    except (OSError, ValueError) as error:
        raise UserError(
            f"model.name={name}: its {INDEX} could not be had: {first_line(error)} Without a "
            f"network, download the model where there is one (`hf download {name} --local-dir "
            "FOLDER`) and set model.name=FOLDER."
        ) from error
