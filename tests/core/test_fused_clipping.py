"""Clipping by the vendor's kernel is clipping by torch, in fewer launches."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_gaudi._core import vendor
from lightning_gaudi._core.precision.fused_clipping import clip_norm
from tests.helpers.forked import fork_python

SHAPES = ((4, 3), (7,), (1,), (2, 3, 5), (6, 6), (3, 1))


def _parameters(device: str, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    """Two have no gradient: one is frozen, one was not used."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for shape in SHAPES:
        parameter = nn.Parameter(torch.zeros(shape, dtype=dtype, device=device))
        parameter.grad = torch.randn(shape, generator=generator).to(device, dtype)
        found.append(parameter)
    frozen = nn.Parameter(torch.zeros(2, device=device), requires_grad=False)
    return [frozen, *found, nn.Parameter(torch.zeros(3, device=device))]


def _check(ours: list[nn.Parameter], theirs: list[nn.Parameter], tolerance: float) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.grad is None) == (other.grad is None)
        if mine.grad is not None and other.grad is not None:
            assert mine.grad.dtype == other.grad.dtype
            found, expected = mine.grad.cpu(), other.grad
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def _counted(metric: str, run: Any) -> int:
    before = vendor.metric(metric)["TotalNumber"]  # type: ignore[index]
    run()
    return int(vendor.metric(metric)["TotalNumber"] - before)  # type: ignore[index]


@pytest.mark.parametrize("max_norm", [0.5, 1000.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_gradients_and_norm_are_torchs(
    max_norm: float, dtype: torch.dtype, tolerance: float
) -> None:
    ours, theirs = _parameters("hpu", dtype), _parameters("cpu", dtype)
    norm = clip_norm(iter(ours), max_norm)
    expected = nn.utils.clip_grad_norm_(theirs, max_norm)
    assert (norm.shape, norm.dtype, norm.device.type) == ((), dtype, "hpu")
    torch.testing.assert_close(norm.cpu(), expected, rtol=tolerance, atol=0)
    _check(ours, theirs, tolerance)


def test_it_is_one_launch_whatever_the_number_of_gradients_and_no_wait() -> None:
    parameters = _parameters("hpu")
    torchs = _counted("launch", lambda: nn.utils.clip_grad_norm_(parameters, 0.5))
    assert torchs > 2 * len(SHAPES)
    clip_norm(parameters, 0.5)  # the limit is on the card from now on
    assert _counted("launch", lambda: clip_norm(parameters, 0.5)) == 1
    assert _counted("host_sync", lambda: clip_norm(parameters, 0.5)) == 0


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_gradient_that_is_not_finite_leaves_what_torch_leaves(value: float) -> None:
    ours, theirs = _parameters("hpu"), _parameters("cpu")
    for parameters in (ours, theirs):
        parameters[2].grad[3] = value  # type: ignore[index]
    norm = clip_norm(ours, 0.5)
    expected = nn.utils.clip_grad_norm_(theirs, 0.5)
    torch.testing.assert_close(norm.cpu(), expected, equal_nan=True)
    for mine, other in zip(ours[1:-1], theirs[1:-1], strict=True):
        torch.testing.assert_close(mine.grad.cpu(), other.grad, equal_nan=True)  # type: ignore[union-attr]


def _mixed(device: str) -> list[nn.Parameter]:
    return [*_parameters(device), *_parameters(device, torch.bfloat16)]


def _empty(device: str) -> list[nn.Parameter]:
    parameter = nn.Parameter(torch.zeros(0, 3, device=device))
    parameter.grad = torch.zeros_like(parameter)
    return [*_parameters(device), parameter]


@pytest.mark.parametrize(
    ("make", "norm_type"),
    [
        (_parameters, 1.0),
        (_parameters, math.inf),
        (_mixed, 2.0),
        (_empty, 2.0),
        (lambda device: _parameters(device)[:1], 2.0),
        (lambda device: [], 2.0),
        (lambda device: _parameters(device, torch.float16), 2.0),
    ],
    ids=["1-norm", "inf-norm", "dtypes", "empty", "no gradient", "none", "float16"],
)
def test_torch_clips_what_the_kernel_does_not(
    make: Any, norm_type: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vendor, "fused_clip_norm", None)
    ours, theirs = make("hpu"), make("cpu")
    norm = clip_norm(ours, 0.5, norm_type)
    expected = nn.utils.clip_grad_norm_(theirs, 0.5, norm_type)
    torch.testing.assert_close(norm.cpu(), expected, rtol=1e-2, atol=0)
    _check(ours, theirs, 1e-2 if len(ours) > 8 or norm.dtype == torch.float16 else 1e-6)


def test_an_error_is_torchs_and_comes_before_the_clipping() -> None:
    parameters = _parameters("hpu")
    gradient: Tensor = parameters[1].grad  # type: ignore[assignment]
    gradient[0, 0] = math.inf
    before = gradient.cpu()
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_norm(parameters, 0.5, error_if_nonfinite=True)
    torch.testing.assert_close(gradient.cpu(), before)


def test_in_lazy_mode_it_cuts_no_graph() -> None:
    fork_python(
        """
        import torch
        from lightning_gaudi._core import vendor
        from lightning_gaudi._core.precision.fused_clipping import clip_norm
        from tests.core.test_fused_clipping import _check, _counted, _parameters
        ours, theirs = _parameters("hpu"), _parameters("cpu")
        vendor.mark_step()
        assert vendor.is_lazy()
        assert _counted("launch", lambda: clip_norm(ours, 0.5)) == 0
        torch.nn.utils.clip_grad_norm_(theirs, 0.5)
        vendor.mark_step()
        _check(ours, theirs, 1e-6)
        """,
        env={"PT_HPU_LAZY_MODE": "1"},
    )
