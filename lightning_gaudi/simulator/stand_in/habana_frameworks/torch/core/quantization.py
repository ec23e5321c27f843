"""Preparing a model for inference.

On a card these calls fuse layers and mark weights as constants of the compiled graph; results
stay the same. The simulated HPU compiles nothing, so they only keep the vendor's contract.
"""

from __future__ import annotations

import torch

from ..._missing import missing


def hpu_set_inference_env(model: torch.nn.Module | None = None) -> torch.nn.Module | None:
    """Switch to inference; call it before the model moves to the device.

    Args:
        model: A model whose layers may be fused.

    Returns:
        The model to use from now on; None without one.
    """
    return model


def hpu_inference_initialize(
    model: torch.nn.Module | None = None,
    mark_only_scales_as_const: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    args: object = None,
) -> None:
    """Take the model's weights as constants; call it after the model moved to the device.

    Args:
        model: The model.
        mark_only_scales_as_const: Whether only quantization scales become constants.
        optimizer: Unused, as in the vendor's.
        args: Unused, as in the vendor's.
    """


def hpu_teardown_inference_env() -> None:
    """Switch back from inference."""


hpu_set_env = hpu_set_inference_env
hpu_initialize = hpu_inference_initialize
hpu_reset_env = hpu_teardown_inference_env

__getattr__ = missing(__name__)
