"""FusedClipNorm and FusedRMSNorm against torch on the CPU."""

from __future__ import annotations

import pytest
import torch
from habana_frameworks.torch.hpex.normalization import (
    FusedClipNorm,
    FusedRMSNorm,
    RmsNormBwdMode,
)


def _with_gradients(device, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    parameters = [
        torch.nn.Parameter(torch.zeros(shape, device=device, dtype=dtype))
        for shape in ((4, 3), (7,), (1,))
    ]
    for parameter in parameters:
        gradient = torch.randn(parameter.shape, generator=generator)
        parameter.grad = gradient.to(device, dtype)
    return parameters


@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_clip_norm_equals_torchs(max_norm):
    ours, theirs = _with_gradients("hpu"), _with_gradients("cpu")
    norm = FusedClipNorm(ours, max_norm).clip_norm(ours)
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    assert norm.is_hpu
    assert norm.shape == (1,)
    torch.testing.assert_close(norm.cpu()[0], expected, rtol=1e-6, atol=0)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad.cpu(), other.grad, rtol=1e-6, atol=1e-7)


def test_clip_norm_in_bf16_stays_near_torchs():
    ours, theirs = _with_gradients("hpu", torch.bfloat16), _with_gradients("cpu")
    norm = FusedClipNorm(ours, 0.5).clip_norm(ours)
    expected = torch.nn.utils.clip_grad_norm_(theirs, 0.5)
    assert norm.dtype == torch.bfloat16
    torch.testing.assert_close(norm.cpu()[0].float(), expected, rtol=1e-2, atol=0)


def test_clip_norm_does_not_wait_for_the_device():
    parameters = _with_gradients("hpu")
    clip = FusedClipNorm(parameters, 0.5)
    with torch.hpu.metric_localcontext("host_sync") as metric:
        clip.clip_norm(parameters)
    assert dict(metric.stats())["TotalNumber"] == 0


def test_clip_norm_skips_what_has_no_gradient():
    parameters = _with_gradients("hpu")
    clip = FusedClipNorm(iter(parameters), 1.0)
    parameters[0].grad = None
    rest = torch.cat([p.grad.flatten() for p in parameters[1:]]).norm()
    torch.testing.assert_close(clip.clip_norm(parameters)[0], rest)
    torch.testing.assert_close(clip.clip_norm(parameters[1])[0], parameters[1].grad.norm())
    assert clip.clip_norm(parameters[:1]).item() == 0


def test_the_clip_operator_refuses_other_norms_and_no_gradients():
    one = torch.ones(1, device="hpu")
    with pytest.raises(RuntimeError, match=r"computes the 2-norm, got norm_type=1\.0"):
        torch.ops.hpu.fused_clip_norm([one, one.clone()], one, 1.0)
    with pytest.raises(RuntimeError, match="fused_clip_norm got no tensors"):
        torch.ops.hpu.fused_clip_norm([one], one, 2.0)
    with pytest.raises(RuntimeError, match=r"dtype of the first gradient, got .*bfloat16"):
        torch.ops.hpu.fused_clip_norm([one, one.bfloat16(), one], one, 2.0)


def _rms_reference(x, gamma, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gamma


@pytest.mark.parametrize("shape", [(32, 1, 40), (8, 2, 2, 4)])
@pytest.mark.parametrize("fast_math", [False, True])
def test_rms_norm_equals_its_formula_forward_and_backward(shape, fast_math):
    torch.manual_seed(0)
    x, grad = torch.randn(shape), torch.randn(shape)
    gamma = torch.rand(shape[-1])
    cpu = [t.double().requires_grad_() for t in (x, gamma)]
    expected = _rms_reference(*cpu, 1e-6)
    expected.backward(grad.double())
    hpu = [t.to("hpu").requires_grad_() for t in (x, gamma)]
    mode = RmsNormBwdMode.STATIC_CASE_WIDTH_PARTITIONING.value
    out = FusedRMSNorm.apply(*hpu, 1e-6, True, mode, fast_math)
    out.backward(grad.to("hpu"))
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(out.detach().cpu().double(), expected.detach(), **close)
    for mine, other in zip(hpu, cpu, strict=True):
        torch.testing.assert_close(mine.grad.cpu().double(), other.grad, **close)


def test_rms_norm_is_fp32_for_mixed_dtypes():
    x = torch.randn(2, 8, device="hpu", dtype=torch.bfloat16, requires_grad=True)
    gamma = torch.ones(8, device="hpu", requires_grad=True)
    out = FusedRMSNorm.apply(x, gamma, 1e-6)
    assert out.dtype == torch.float32
    out.sum().backward()
    assert (x.grad.dtype, gamma.grad.dtype) == (torch.bfloat16, torch.float32)
    assert FusedRMSNorm.apply(x, gamma.bfloat16(), 1e-6).dtype == torch.bfloat16


def test_autocast_does_not_reach_into_the_operator():
    x, gamma = torch.randn(4, 64, device="hpu"), torch.ones(64, device="hpu")
    expected = FusedRMSNorm.apply(x, gamma, 1e-6)
    with torch.autocast("hpu", dtype=torch.bfloat16):
        assert torch.equal(FusedRMSNorm.apply(x, gamma, 1e-6), expected)
