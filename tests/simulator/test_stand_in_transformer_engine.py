"""Modules in fp8 against the same arithmetic written down for the CPU."""

from __future__ import annotations

import math

import habana_frameworks.torch.hpex.experimental.transformer_engine as te
import pytest
import torch
from habana_frameworks.torch._ops import fp8 as fp8_ops
from habana_frameworks.torch.hpex.experimental.transformer_engine import distributed
from habana_frameworks.torch.hpex.experimental.transformer_engine.fp8 import FP8GlobalStateManager
from habana_frameworks.torch.hpex.experimental.transformer_engine.recipe import (
    DelayedScaling,
    Format,
)

from lightning_gaudi.simulator.settings import CARDS

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
LARGEST = {E4M3: 240.0, E5M2: 57344.0}


@pytest.fixture(autouse=True)
def _round_to_the_nearest(monkeypatch):
    monkeypatch.setenv("PT_TE_FORCE_SR_BWD", "0")


def _random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class _Scaled:
    """A tensor's scale as delayed scaling makes it, on the CPU."""

    def __init__(self, dtype, margin=0):
        self.dtype, self.margin, self.scale, self.amax = dtype, margin, 1.0, 0.0

    def round(self, x):
        if self.amax:
            exponent = math.floor(math.log2(LARGEST[self.dtype] / self.amax)) - self.margin
            self.scale = 2.0**exponent
        self.amax = x.abs().max().item()
        limit = LARGEST[self.dtype]
        return (x * self.scale).clamp(-limit, limit).to(self.dtype).float() / self.scale


class _Reference:
    """A linear layer in fp8 on the CPU."""

    def __init__(self, weight, bias, recipe):
        self.weight, self.bias = weight, bias
        hybrid = recipe.fp8_format is Format.HYBRID
        forward = [E4M3, E5M2] if hybrid else [E5M2]
        self.x, self.w = ([_Scaled(d, recipe.margin) for d in forward] for _ in range(2))
        self.grad = _Scaled(E5M2, recipe.margin)

    def step(self, x, grad):
        """The output, and the gradients of input, weight and bias."""
        xs, ws = [s.round(x) for s in self.x], [s.round(self.weight) for s in self.w]
        out = xs[0] @ ws[0].t() + self.bias.bfloat16().float()
        g = self.grad.round(grad)
        return out, g @ ws[-1], g.t() @ xs[-1], grad.sum(0)


def _layer(dtype=torch.float32, **kwargs):
    layer = te.Linear(16, 8, params_dtype=dtype, **kwargs)
    with torch.no_grad():
        layer.weight.copy_(_weight())
        layer.bias.copy_(_random(8, seed=2))
    return layer


def _weight():
    return _random(8, 16, seed=1) * 3


def _step(layer, x, grad, recipe, **kwargs):
    inp = x.to("hpu").requires_grad_()
    layer.zero_grad()
    with te.fp8_autocast(enabled=True, fp8_recipe=recipe):
        out = layer(inp, **kwargs)
    out.backward(grad.to("hpu"))
    return [t.detach().cpu() for t in (out, inp.grad, layer.weight.grad, layer.bias.grad)]


@pytest.mark.parametrize("margin", [0, 2])
@pytest.mark.parametrize("fp8_format", [Format.E5M2, Format.HYBRID])
def test_linear_equals_the_same_arithmetic_on_the_cpu(fp8_format, margin):
    recipe = DelayedScaling(fp8_format=fp8_format, margin=margin)
    layer = _layer()
    reference = _Reference(_weight(), _random(8, seed=2), recipe)
    for i in range(4):
        x, grad = _random(4, 16, seed=10 + i) * 10.0**i, _random(4, 8, seed=20 + i) * 0.1**i
        for ours, expected in zip(_step(layer, x, grad, recipe), reference.step(x, grad),
                                  strict=True):  # fmt: skip
            torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("fp8_format", [Format.E5M2, Format.HYBRID])
def test_linear_is_near_fp32_once_it_has_scales(fp8_format):
    layer, x = _layer(), _random(32, 16) * 1000
    for _ in range(2):
        out = _step(layer, x, _random(32, 8), DelayedScaling(fp8_format=fp8_format))[0]
    expected = x @ _weight().t() + layer.bias.detach().cpu()
    error = (out - expected).norm() / expected.norm()
    assert error < (0.04 if fp8_format is Format.HYBRID else 0.08)


def test_outside_of_autocast_linear_is_torchs():
    layer, x = _layer(), _random(4, 16).to("hpu")
    expected = torch.nn.functional.linear(x, layer.weight, layer.bias)
    assert torch.equal(layer(x), expected)
    with te.fp8_autocast(enabled=False):
        assert torch.equal(layer(x), expected)
    assert not FP8GlobalStateManager.is_fp8_enabled()
    assert "scaling_fwd" not in layer.fp8_meta


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_output_has_the_inputs_dtype_or_autocasts(dtype):
    layer, x = _layer(dtype=dtype), _random(2, 3, 16).to("hpu", dtype)
    with te.fp8_autocast(enabled=True):
        assert layer(x).dtype == dtype
        assert layer(x).shape == (2, 3, 8)
        with torch.autocast("hpu", torch.bfloat16):
            assert layer(x.float()).dtype == torch.bfloat16
        with pytest.raises(ValueError, match=r"an input in torch.float16 and has a weight in"):
            layer(x.half())


def test_a_history_keeps_the_largest_of_its_steps():
    recipe = DelayedScaling(amax_history_len=3, amax_compute_algo="max")
    layer = _layer()
    values = [1.0, 100.0, 3.0, 4.0, 5.0]
    scales = []
    for value in values:
        _step(layer, torch.full((2, 16), value), torch.ones(2, 8), recipe)
        scales.append(layer.fp8_meta["scaling_fwd"].scale[0].item())
    seen = [max(values[max(0, i - 3) : i], default=None) for i in range(len(values))]
    assert scales == [1.0] + [2.0 ** math.floor(math.log2(57344 / s)) for s in seen[1:]]
    history = layer.fp8_meta["scaling_fwd"].amax_history
    assert sorted(history[:, 0].tolist()) == [3.0, 4.0, 5.0]
    for length, kept in ((2, [5.0, 6.0]), (4, [0.0, 5.0, 6.0, 7.0])):
        value = 6.0 if length == 2 else 7.0
        recipe = DelayedScaling(amax_history_len=length, amax_compute_algo="max")
        _step(layer, torch.full((2, 16), value), torch.ones(2, 8), recipe)
        history = layer.fp8_meta["scaling_fwd"].amax_history
        assert sorted(history[:, 0].tolist()) == kept


def test_an_interval_measures_in_its_last_step_and_scales_in_the_next():
    recipe, layer, scales = DelayedScaling(interval=3), _layer(), []
    for i in range(7):
        _step(layer, torch.full((2, 16), 10.0**i), torch.ones(2, 8), recipe)
        scales.append(layer.fp8_meta["scaling_fwd"].scale[0].item())
    assert scales[:2] == [1.0, 1.0]
    assert len(set(scales)) < 5


def test_functions_of_the_users_choose_scales():
    recipe = DelayedScaling(
        amax_compute_algo=lambda history: history[0] * 2,
        scaling_factor_compute_algo=lambda amax, old, limit, recipe: limit / amax,
    )
    layer = _layer()
    for _ in range(2):
        _step(layer, torch.full((2, 16), 7.0), torch.ones(2, 8), recipe)
    assert layer.fp8_meta["scaling_fwd"].scale[0].item() == pytest.approx(57344 / 14)


@pytest.mark.parametrize("reduce_amax", [True, False])
@pytest.mark.parametrize("fp8_format", [Format.E5M2, Format.HYBRID])
def test_scales_follow_the_largest_value_of_any_rank(fp8_format, reduce_amax, monkeypatch):
    shared = []

    def share(tensor, group):  # as if another rank had measured 1000 everywhere
        shared.append(group)
        tensor.clamp_(min=1000.0)

    monkeypatch.setattr(FP8GlobalStateManager, "reduce_tensor_across_group_op_max", share)
    recipe = DelayedScaling(fp8_format=fp8_format, reduce_amax=reduce_amax)
    layer = _layer()
    for _ in range(2):
        _step(layer, torch.full((2, 16), 7.0), torch.ones(2, 8), recipe)
    limit = 240 if fp8_format is Format.HYBRID else 57344
    largest = 1000.0 if reduce_amax else 7.0
    expected = 2.0 ** math.floor(math.log2(limit / largest))
    assert layer.fp8_meta["scaling_fwd"].scale[0].item() == expected
    assert shared == [None] * (2 if reduce_amax else 0)  # of the inputs, and of the gradient


def test_measurement_can_be_forced_and_forbidden():
    layer, x = _layer(), torch.full((2, 16), 7.0, device="hpu")
    for force, measured in ((False, 0.0), (True, 7.0)):
        with te.fp8_autocast(enabled=True, force_measurement=force):
            layer(x)
        assert layer.fp8_meta["scaling_fwd"].amax_history[0, 0].item() == measured


@pytest.mark.parametrize("fp8_format", [Format.E5M2, Format.HYBRID])
def test_a_weight_is_rounded_once_for_its_microbatches(fp8_format):
    recipe = DelayedScaling(fp8_format=fp8_format)
    layer, other = _layer(), _layer()
    x, grad = _random(4, 16), _random(4, 8)
    for ours in (layer, other):
        _step(ours, x, grad, recipe)
    first = _step(layer, x, grad, recipe, is_first_microbatch=True)
    for ours, expected in zip(first, _step(other, x, grad, recipe), strict=True):
        assert torch.equal(ours, expected)
    with torch.no_grad():
        layer.weight.zero_()
    kept = _step(layer, x, grad, recipe, is_first_microbatch=False)
    for ours, expected in zip(kept, first, strict=True):
        assert torch.equal(ours, expected)
    with pytest.raises(ValueError, match="is_first_microbatch=False before any True"):
        _step(_layer(), x, grad, recipe, is_first_microbatch=False)


@pytest.mark.parametrize("fp8_format", [Format.E5M2, Format.HYBRID])
def test_rounding_the_weight_again_gives_the_same(fp8_format):
    recipe = DelayedScaling(fp8_format=fp8_format)
    layers = [_layer(minimize_memory=minimize) for minimize in (True, False)]
    for i in range(3):
        results = [_step(layer, _random(4, 16) * i, _random(4, 8), recipe) for layer in layers]
        for ours, expected in zip(*results, strict=True):
            assert torch.equal(ours, expected)


@pytest.mark.parametrize("use_function", [True, False])
@pytest.mark.parametrize("fp8_format", [Format.E5M2, Format.HYBRID])
def test_checkpointed_activations_give_the_same(fp8_format, use_function):
    recipe = DelayedScaling(fp8_format=fp8_format, amax_history_len=2)
    layers = [_layer() for _ in range(2)]

    def run(x):
        with te.fp8_autocast(enabled=True, fp8_recipe=recipe):
            return layers[0](x)

    def run_in_context(x):
        with distributed.activation_checkpointing():
            return run(x)

    for i in range(3):
        x, grad = _random(4, 16) * 10.0**i, _random(4, 8)
        inp = x.to("hpu").requires_grad_()
        layers[0].zero_grad()
        if use_function:
            out = te.checkpoint(run, False, None, None, inp)
        else:
            out = torch.utils.checkpoint.checkpoint(run_in_context, inp, use_reentrant=True)
        out.backward(grad.to("hpu"))
        ours = (out, inp.grad, layers[0].weight.grad, layers[0].bias.grad)
        for mine, expected in zip(ours, _step(layers[1], x, grad, recipe), strict=True):
            assert torch.equal(mine.detach().cpu(), expected)


def test_passes_that_do_not_agree_are_refused():
    layer, x = _layer(), torch.ones(2, 16, device="hpu", requires_grad=True)

    def run(inp):
        with distributed.activation_checkpointing():
            return layer(inp)

    with te.fp8_autocast(enabled=True):
        out = torch.utils.checkpoint.checkpoint(run, x, use_reentrant=True)
    with pytest.raises(RuntimeError, match="is computed again outside of fp8_autocast"):
        out.sum().backward()
    with (
        te.fp8_autocast(enabled=True),
        distributed.activation_checkpointing(),
        pytest.raises(RuntimeError, match="first pass already computes gradients"),
    ):
        _layer()(x)
    with pytest.raises(NotImplementedError, match="Pass False and None"):
        te.checkpoint(run, True, None, None, x)


def test_training_goes_on_from_a_state_dict():
    recipe = DelayedScaling(fp8_format=Format.HYBRID, amax_history_len=2)
    layer, other = _layer(), te.Linear(16, 8)
    steps = [(_random(4, 16, seed=i) * 5, _random(4, 8, seed=i)) for i in range(4)]
    for step in steps[:2]:
        _step(layer, *step, recipe)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.get_extra_state(), layer.get_extra_state())
    for step in steps[2:]:
        results = [_step(each, *step, recipe) for each in (layer, other)]
        for ours, expected in zip(*results, strict=True):
            assert torch.equal(ours, expected)
    fresh = te.Linear(16, 8)
    fresh.load_state_dict(te.Linear(16, 8).state_dict())
    assert "scaling_fwd" not in fresh.fp8_meta


@pytest.mark.parametrize("fp8_format", [Format.E5M2, Format.HYBRID])
def test_a_network_in_fp8_learns_at_random_rounding(fp8_format, monkeypatch):
    monkeypatch.delenv("PT_TE_FORCE_SR_BWD")
    torch.manual_seed(0)
    net = torch.nn.Sequential(te.Linear(8, 32), torch.nn.ReLU(), te.Linear(32, 1))
    for layer in (net[0], net[2]):
        torch.nn.init.xavier_uniform_(layer.weight)
    x = _random(128, 8).to("hpu")
    y = x[:, :1] * x[:, 1:2] + x[:, 2:3]
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    recipe = DelayedScaling(fp8_format=fp8_format, amax_history_len=4, amax_compute_algo="max")
    losses = []
    for _ in range(150):
        with te.fp8_autocast(enabled=True, fp8_recipe=recipe):
            loss = torch.nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


def test_a_step_in_fp8_does_not_wait_for_the_device():
    layer, x = _layer(), torch.ones(4, 16, device="hpu")
    with torch.hpu.metric_localcontext("host_sync") as metric:
        for _ in range(3):
            with te.fp8_autocast(enabled=True, fp8_recipe=DelayedScaling(amax_history_len=2)):
                layer(x).sum().backward()
    assert dict(metric.stats())["TotalNumber"] == 0


def test_a_bias_can_be_returned_and_parameters_can_come_with_the_call():
    layer = _layer(return_bias=True)
    out, bias = layer(torch.zeros(2, 16, device="hpu"))
    assert bias is layer.bias
    assert out.abs().sum() == 0
    bare = te.Linear(16, 8, skip_weight_param_allocation=True)
    assert not list(bare.parameters())
    with te.fp8_autocast(enabled=True):
        assert bare(torch.ones(2, 16, device="hpu"), layer.weight, layer.bias).shape == (2, 8)
        with pytest.raises(ValueError, match="needs a weight with every call"):
            bare(torch.ones(2, 16, device="hpu"))


@pytest.mark.parametrize(
    "setting",
    [{"tp_size": 2}, {"sequence_parallel": True}, {"parallel_mode": "row"}],
)
def test_tensor_parallelism_is_refused(setting):
    with pytest.raises(NotImplementedError, match=r"Linear with tensor or sequence parallelism"):
        te.Linear(4, 4, **setting)


def test_recipes_that_do_not_train_are_refused():
    with pytest.raises(ValueError, match=r"pass Format.E5M2 or Format.HYBRID"):
        DelayedScaling(fp8_format=Format.E4M3)
    with pytest.raises(ValueError, match=r"override_linear_precision=\(True, False, False\)"):
        DelayedScaling(override_linear_precision=(True, False, False))


def test_a_gaudi_1_has_no_fp8_autocast(monkeypatch):
    monkeypatch.setattr(fp8_ops, "card", lambda: CARDS["gaudi1"])
    match = "fp8_autocast needs fp8, and this card is a Gaudi 1"
    with pytest.raises(RuntimeError, match=match), te.fp8_autocast(enabled=True):
        pass
    with te.fp8_autocast(enabled=False):
        pass
    assert FP8GlobalStateManager.FP8_AUTOCAST_DEPTH == 0


B, H, T, D = 2, 2, 6, 8


def _qkv(num_key_heads=H):
    shapes = ((B, H, T, D), (B, num_key_heads, T, D), (B, num_key_heads, T, D))
    return [_random(*shape, seed=i) for i, shape in enumerate(shapes)]


def _attend(attention, tensors, recipe, **settings):
    ours = [t.to("hpu").requires_grad_() for t in tensors]
    with te.fp8_autocast(enabled=recipe is not None, fp8_recipe=recipe):
        out = attention(*ours, is_causal=True, **settings)
    out.backward(_random(B, H, T, D, seed=9).to("hpu"))
    return [t.detach().cpu() for t in (out, *(t.grad for t in ours))]


@pytest.mark.parametrize("num_key_heads", [H, 1])
@pytest.mark.parametrize("fp8_format", [Format.E5M2, Format.HYBRID])
def test_attention_in_fp8_stays_near_fp32(fp8_format, num_key_heads, monkeypatch):
    monkeypatch.setattr(fp8_ops, "card", lambda: CARDS["gaudi3"])
    monkeypatch.setattr(te.module.attention, "card", lambda: CARDS["gaudi3"])
    attention, tensors = te.FusedAttention(None, 0.0, False), _qkv(num_key_heads)
    recipe = DelayedScaling(fp8_format=fp8_format)
    for _ in range(2):
        ours = _attend(attention, tensors, recipe)
    assert attention.fp8_meta["scaling_fwd"].amax_history[0, 3].item() == 1.0
    assert (attention.fp8_meta["scaling_bwd"].amax_history > 0).all()
    for mine, expected in zip(ours, _attend(attention, tensors, None), strict=True):
        assert (mine - expected).norm() / expected.norm() < 0.2


def test_attention_outside_of_autocast_is_fused_sdpa():
    tensors = _qkv()
    ours = _attend(te.FusedAttention(0.3, 0.0, True), tensors, None)[0]
    attend = torch.nn.functional.scaled_dot_product_attention
    expected = attend(*tensors, is_causal=True, scale=0.3)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_attention_refuses_what_a_card_cannot_in_fp8():
    hybrid, tensors = DelayedScaling(fp8_format=Format.HYBRID), _qkv()
    with pytest.raises(ValueError, match=r"Format.HYBRID needs a Gaudi 3. Use Format.E5M2"):
        _attend(te.FusedAttention(None, 0.0, False), tensors, hybrid)
    with pytest.raises(ValueError, match="Pass recompute=False"):
        _attend(te.FusedAttention(None, 0.0, True), tensors, DelayedScaling())
    with pytest.raises(NotImplementedError, match=r"fp8 attention with dropout \(p=0.1\)"):
        _attend(te.FusedAttention(None, 0.1, False), tensors, DelayedScaling())
