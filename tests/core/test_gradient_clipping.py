"""Clipping gradients of any meshes is clipping them as if they were in one place."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from lightning_gaudi._core.precision.gradient_clipping import clip_dtensor_norm, clip_dtensor_value
from tests.helpers.trainers import run_trainers

NUM_RANKS = 4
NORMS = (1.0, 2.0, 3.0, math.inf)
SHAPES = {"plain": (3, 5), "line": (7, 2), "grid": (4, 8), "both": (5, 3), "sum": (6, 6)}


def _gradients() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def _parameters() -> dict[str, Tensor]:
    """Each with its gradient: whole, on one axis, on both, on one of two, as summands."""
    grid = init_device_mesh("hpu", (2, 2), mesh_dim_names=("data", "tensors"))
    layouts: dict[str, Any] = {
        "line": (grid["data"], [Shard(0)]),  # 7 rows do not divide by 2
        "grid": (grid, [Shard(0), Shard(1)]),
        "both": (grid, [Shard(0), Replicate()]),
        "sum": (grid["tensors"], [Replicate()]),
    }
    found: dict[str, Tensor] = {}
    for name, gradient in _gradients().items():
        if name == "plain":
            parameter = nn.Parameter(torch.zeros(SHAPES[name], device="hpu"))
            parameter.grad = gradient.to("hpu")
        else:
            mesh, placements = layouts[name]
            zeros = torch.zeros(SHAPES[name], device="hpu")
            parameter = nn.Parameter(distribute_tensor(zeros, mesh, placements))
            parameter.grad = distribute_tensor(gradient.to("hpu"), mesh, placements)
        found[name] = parameter
    summand = _gradients()["sum"].to("hpu") * (0.25 if torch.distributed.get_rank() % 2 else 0.75)
    found["sum"].grad = DTensor.from_local(summand, grid["tensors"], [Partial()])
    found["frozen"] = nn.Parameter(torch.zeros(2, device="hpu"))
    return found


def _whole(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
    return whole.cpu()


def _clip(rank: int) -> None:
    Fabric(accelerator="hpu", devices=NUM_RANKS).launch()
    for norm_type in NORMS:
        parameters = _parameters()
        norm = clip_dtensor_norm(parameters.values(), 0.5, norm_type)
        expected = [nn.Parameter(torch.zeros_like(each)) for each in _gradients().values()]
        for parameter, gradient in zip(expected, _gradients().values(), strict=True):
            parameter.grad = gradient
        reference = nn.utils.clip_grad_norm_(expected, 0.5, norm_type)
        assert not isinstance(norm, DTensor)
        assert norm.device.type == "hpu"
        torch.testing.assert_close(norm.cpu(), reference, msg=str(norm_type))
        for name, parameter in zip(SHAPES, expected, strict=True):
            torch.testing.assert_close(_whole(parameters[name].grad), parameter.grad, msg=name)
    parameters = _parameters()
    clip_dtensor_value(parameters.values(), 0.3)
    for name, gradient in _gradients().items():
        torch.testing.assert_close(_whole(parameters[name].grad), gradient.clamp(-0.3, 0.3))
    parameters = _parameters()
    clip_dtensor_norm(parameters.values(), 1e6)
    for name, gradient in _gradients().items():
        torch.testing.assert_close(_whole(parameters[name].grad), gradient)
    if rank == 0:
        parameters["grid"].grad.to_local()[0, 0] = math.nan  # type: ignore[union-attr]
    with pytest.raises(RuntimeError, match=r"order 2\.0 .* is non-finite"):
        clip_dtensor_norm(parameters.values(), 1.0, error_if_nonfinite=True)
    assert math.isnan(clip_dtensor_norm(parameters.values(), 1.0).item())


@pytest.mark.slow
def test_gradients_of_several_meshes_are_clipped_as_if_in_one_place(tmp_path: Path) -> None:
    """All ranks find the norm, and one's infinity or NaN."""
    run_trainers(_clip, tmp_path, num_ranks=NUM_RANKS)


def test_without_gradients_the_norm_is_0() -> None:
    assert clip_dtensor_norm([nn.Parameter(torch.zeros(1))], 1.0) == 0


@pytest.mark.parametrize("norm_type", [0.0, -1.0, -math.inf, math.nan])
def test_a_norm_that_ranks_cannot_add_up_is_refused(norm_type: float) -> None:
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.ones(2)
    with pytest.raises(ValueError, match=r"by the norm of order .*Pass a norm_type above 0"):
        clip_dtensor_norm([weight], 1.0, norm_type)
    torch.testing.assert_close(weight.grad, torch.ones(2), rtol=0, atol=0)
