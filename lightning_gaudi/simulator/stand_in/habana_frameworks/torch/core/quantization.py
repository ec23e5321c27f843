"""Prepares a model for inference.

On a card these calls fuse layers and mark weights as constants of the compiled graph; results
stay the same. The simulated HPU compiles nothing, so they only set the vendor's switches.
"""

from __future__ import annotations

import os

import torch

from ..._missing import missing
from ..._release import release
from ..hpu import switches
from ..internal import fuse_conv_bn


def _set_env(model: torch.nn.Module | None = None) -> torch.nn.Module | None:
    """Switches to inference; to be called before the model moves to the device.

    Args:
        model: A model, whose convolutions take the batch norms behind them in.

    Returns:
        The model to use from now on; None without one.
    """
    switches.enable_inference_mode()
    switches.enable_matmul3d_2d_reshape()
    return None if model is None else fuse_conv_bn.fuse(model)


def _reset_env() -> None:
    """Switches back from inference."""
    switches.disable_inference_mode()
    switches.disable_matmul3d_2d_reshape()


def hpu_inference_set_env(model: torch.nn.Module | None = None) -> torch.nn.Module | None:
    """Switches to inference; to be called before the model moves to the device.

    Args:
        model: A model, whose convolutions take the batch norms behind them in.

    Returns:
        The model to use from now on; None without one.
    """
    return _set_env(model)


def hpu_set_inference_env(model: torch.nn.Module | None = None) -> torch.nn.Module | None:
    """Does what `hpu_inference_set_env` does, under its older name."""
    return _set_env(model)


def hpu_inference_reset_env() -> None:
    """Switches back from inference."""
    _reset_env()


def hpu_teardown_inference_env() -> None:
    """Does what `hpu_inference_reset_env` does, under its older name."""
    _reset_env()


if release().number >= 122:

    def hpu_inference_initialize(
        model: torch.nn.Module | None = None,
        mark_only_scales_as_const: bool = False,
        mark_scales: bool = True,
        mark_non_scales: bool = True,
        optimizer: torch.optim.Optimizer | None = None,
        args: object = None,
    ) -> None:
        """Takes the model's weights as constants; to be called after the model moved to the device.

        Args:
            model: The model.
            mark_only_scales_as_const: Whether only quantization scales become constants.
            mark_scales: Whether quantization scales do.
            mark_non_scales: Whether all else does.
            optimizer: Unused, as in the vendor's.
            args: Unused, as in the vendor's.
        """
        switches.enable_inference_mode()
        switches.enable_matmul3d_2d_reshape()
        switches.set_mark_scale_const(mark_scales or mark_only_scales_as_const)
        switches.set_mark_non_scale_const(mark_non_scales and not mark_only_scales_as_const)

else:

    def hpu_inference_initialize(
        model: torch.nn.Module | None = None,
        mark_only_scales_as_const: bool = False,
        optimizer: torch.optim.Optimizer | None = None,
        args: object = None,
    ) -> None:
        """Takes the model's weights as constants; to be called after the model moved to the device.

        Args:
            model: The model.
            mark_only_scales_as_const: Whether only quantization scales become constants.
            optimizer: Unused, as in the vendor's.
            args: Unused, as in the vendor's.
        """
        switches.enable_inference_mode()
        switches.enable_matmul3d_2d_reshape()


hpu_set_env = hpu_set_inference_env
hpu_initialize = hpu_inference_initialize
hpu_reset_env = hpu_teardown_inference_env


def check_env_flag(name: str, default: str = "") -> bool:
    """Returns whether a variable of the environment says yes."""
    return os.environ.get(name, default).upper() in ("ON", "1", "YES", "TRUE", "Y")


def adjust_name(name: str) -> str:
    """Returns the name that a tensor of a model has in files of quantization ranges."""
    for old, new in ((".min_val", ""), (".max_val", ""), ("layernorm.norm", "layernorm")):
        name = name.replace(old, new)
    return name


__getattr__ = missing(__name__)
