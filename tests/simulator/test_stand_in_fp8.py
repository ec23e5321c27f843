"""fp8 on the device: casts, products, and what each card can."""

from __future__ import annotations

import pytest
import torch
from habana_frameworks.torch._ops import fp8 as fp8_ops

from lightning_gaudi.simulator.settings import CARDS

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
OPS = torch.ops.hpu


@pytest.fixture
def gaudi1(monkeypatch):
    monkeypatch.setattr(fp8_ops, "card", lambda: CARDS["gaudi1"])


@pytest.fixture
def gaudi3(monkeypatch):
    monkeypatch.setattr(fp8_ops, "card", lambda: CARDS["gaudi3"])


def _random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _cast(x, *args, **kwargs):
    cast, amax = OPS.cast_to_fp8_v2(x.to("hpu"), *args, **kwargs)
    return cast.cpu(), amax.cpu()


@pytest.mark.parametrize("wide", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_tensors_of_the_device_are_cast_and_back_as_the_cpus(dtype, wide):
    x = _random(64).to(wide)
    there = x.to("hpu").to(dtype)
    assert there.device.type == "hpu"
    assert torch.equal(there.cpu().view(torch.uint8), x.to(dtype).view(torch.uint8))
    assert torch.equal(there.to(wide).cpu(), x.to(dtype).to(wide))
    assert torch.equal(there.clone().copy_(x.to("hpu")).cpu().float(), x.to(dtype).float())


def test_torchs_scaled_product_runs_on_the_device():
    a, b = _random(16, 32).to(E4M3), _random(48, 32, seed=1).to(E4M3)
    scale = torch.tensor(0.5, device="hpu")
    out = torch._scaled_mm(a.to("hpu"), b.to("hpu").t(), scale, scale, out_dtype=torch.bfloat16)
    expected = (a.float() @ b.float().t() / 4).to(torch.bfloat16)
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("wide", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_a_cast_scales_in_the_inputs_dtype_and_rounds_to_the_nearest(dtype, wide):
    x = (_random(16, 8) * 30).to(wide)
    cast, amax = _cast(x, torch.tensor(1.3, device="hpu"), False, True, dtype)
    expected = (x * torch.tensor(1.3).to(wide)).to(dtype)
    assert torch.equal(cast.float(), expected.float())
    assert amax == x.abs().max()
    assert amax.shape == ()
    back = OPS.cast_from_fp8(cast.to("hpu"), 1 / 1.3, wide).cpu()
    assert torch.equal(back, expected.to(wide) * torch.tensor(1 / 1.3).to(wide))


@pytest.mark.parametrize("as_list", [True, False])
def test_scales_of_channels_have_a_shape(as_list):
    x, scales = _random(4, 8), [0.5, 1.0, 2.0, 4.0]
    scale = scales if as_list else torch.tensor(scales, device="hpu")
    cast, amax = _cast(x, scale, dtype=E5M2, scale_shape=[4, 1])
    assert torch.equal(cast.float(), (x * torch.tensor(scales).unsqueeze(1)).to(E5M2).float())
    assert amax.numel() == 0
    with pytest.raises(RuntimeError, match=r"of 4 elements does not have the scale_shape \[8\]"):
        _cast(x, scale, dtype=E5M2, scale_shape=[8])


OUTSIDE = [1e6, 300.0, -300.0, -1e6]


@pytest.mark.parametrize("stochastic", [True, False])
def test_a_gaudi_2_stops_at_240_in_e4m3(stochastic):
    assert _cast(torch.tensor(OUTSIDE), None, stochastic, dtype=E4M3)[0].tolist() == \
        [240, 240, -240, -240]  # fmt: skip
    large = torch.tensor([1e6, -60000.0])
    assert _cast(large, None, stochastic, dtype=E5M2)[0].tolist() == [57344, -57344]


@pytest.mark.usefixtures("gaudi3")
def test_a_gaudi_3_stops_at_448_in_e4m3():
    assert _cast(torch.tensor(OUTSIDE), dtype=E4M3)[0].tolist() == [448, 288, -288, -448]


def test_what_is_no_number_stays_visible():
    x = torch.tensor([float("inf"), float("-inf"), float("nan")])
    assert _cast(x, dtype=E4M3)[0].float().isnan().all()
    cast = _cast(x, dtype=E5M2)[0].float()
    assert cast[:2].tolist() == [float("inf"), float("-inf")]
    assert cast[2].isnan()


@pytest.mark.parametrize(("dtype", "below", "above"), [(E4M3, 18, 20), (E5M2, 16, 20)])
@pytest.mark.parametrize("sign", [1, -1])
def test_rounding_at_random_keeps_the_mean(dtype, below, above, sign):
    torch.manual_seed(0)
    cast = _cast(torch.full((20000,), sign * 18.5), None, True, dtype=dtype)[0].float()
    assert set(cast.tolist()) == {sign * below, sign * above}
    assert abs(cast.mean() - sign * 18.5) < 0.05
    tiny = _cast(torch.full((20000,), 2.0**-17 * 1.5), None, True, dtype=E5M2)[0].float()
    assert set(tiny.tolist()) == {0.0, 2.0**-16}
    assert _cast(torch.tensor([0.0, 0.5]), None, True, dtype=dtype)[0].tolist() == [0.0, 0.5]


def test_both_formats_at_once():
    x = _random(8, 4) * 10
    scales = [torch.tensor(s, device="hpu") for s in (2.0, 0.5)]
    e5m2, e4m3, amax = OPS.cast_to_fp8_hybrid(x.to("hpu"), *scales, False, True)
    assert torch.equal(e5m2.cpu().float(), (x * 2).to(E5M2).float())
    assert torch.equal(e4m3.cpu().float(), (x * 0.5).to(E4M3).float())
    assert amax.item() == x.abs().max()


def test_a_cast_into_given_tensors():
    x = _random(8, 4)
    out, amax = torch.zeros(8, 4, dtype=E5M2, device="hpu"), torch.zeros(1, device="hpu")
    OPS.cast_to_fp8(x.to("hpu"), torch.tensor(4.0, device="hpu"), False, out, amax)
    assert torch.equal(out.cpu().float(), (x * 4).to(E5M2).float())
    assert amax.item() == x.abs().max()
    with pytest.raises(RuntimeError, match=r"out has shape \(8, 4\), the input \(4, 8\)"):
        OPS.cast_to_fp8(x.t().to("hpu"), None, False, out, amax)


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
def test_products_sum_in_fp32(transposed, out_dtype):
    a, b = _random(2, 6, 8).to(E4M3), _random(2, 8, 5, seed=1).to(E5M2)
    bias, added = _random(5, seed=2), _random(2, 6, 5, seed=3)
    there = [
        (m.transpose(-2, -1) if t else m).contiguous().to("hpu")
        for m, t in zip((a, b), transposed, strict=True)
    ]
    scales = [torch.tensor(s, device="hpu") for s in (0.5, 3.0)]
    out = OPS.fp8_gemm_v2(
        there[0], transposed[0], there[1], transposed[1], added.to("hpu"), out_dtype, *scales,
        bias.to("hpu"), True,
    )  # fmt: skip
    expected = (a.float() @ b.float() * 0.5 * 3.0 + bias + added).to(out_dtype)
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-6, atol=1e-6)


def test_products_with_scales_of_columns_and_into_a_given_tensor():
    a, b = _random(6, 8).to(E4M3), _random(5, 8, seed=1).to(E4M3)
    columns = [1.0, 2.0, 4.0, 8.0, 16.0]
    there = (a.to("hpu"), False, b.to("hpu"), True)
    expected = a.float() @ b.float().t() * torch.tensor(columns)
    out = OPS.fp8_gemm_v2(*there, None, torch.float32, [1.0], columns)
    torch.testing.assert_close(out.cpu(), expected)
    given = torch.ones(6, 5, device="hpu")
    scale = torch.tensor(columns, device="hpu")
    OPS.fp8_gemm(*there, given, torch.float32, None, scale, None, True, given)
    torch.testing.assert_close(given.cpu(), expected + 1)
    with pytest.raises(RuntimeError, match=r"a scale of 5 elements for 6 rows. Pass 1 or as many"):
        OPS.fp8_gemm_v2(*there, None, torch.float32, scale, scale)
    with pytest.raises(RuntimeError, match="with accumulate needs D"):
        OPS.fp8_gemm_v2(*there, None, torch.float32, accumulate=True)


def test_fp8_is_cast_to_its_own_dtype_alone():
    x = _random(4).to(E5M2)
    assert torch.equal(_cast(x, dtype=E5M2)[0].float(), x.float())
    with pytest.raises(RuntimeError, match="only with the same dtype and without is_amax"):
        _cast(x, dtype=E4M3)
    with pytest.raises(RuntimeError, match=r"takes float32, bfloat16 or fp8, got torch.int32"):
        _cast(x.int(), dtype=E4M3)
    with pytest.raises(ValueError, match=r"dtype=torch.float16 is neither"):
        _cast(x.float(), dtype=torch.float16)
    with pytest.raises(ValueError, match="needs a dtype"):
        _cast(x.float())
    with pytest.raises(RuntimeError, match=r"gives float32 or bfloat16, not torch.float16"):
        OPS.cast_from_fp8(x.to("hpu"), None, torch.float16)
    with pytest.raises(RuntimeError, match=r"multiplies fp8 matrices, got torch.float32"):
        OPS.fp8_gemm_v2(*[_random(2, 2).to("hpu"), False] * 2, None, torch.float32)


@pytest.mark.usefixtures("gaudi1")
@pytest.mark.parametrize(
    "call",
    [
        lambda x: OPS.cast_to_fp8_v2(x, None, dtype=E4M3),
        lambda x: OPS.cast_to_fp8_hybrid(x),
        lambda x: OPS.cast_from_fp8(x, None, torch.float32),
        lambda x: OPS.fp8_gemm_v2(x, False, x, False, None, torch.float32),
    ],
)
def test_a_gaudi_1_has_no_fp8(call):
    with pytest.raises(RuntimeError, match="this card is a Gaudi 1: fp8 needs a Gaudi 2 or later"):
        call(torch.ones(2, 2, device="hpu"))
