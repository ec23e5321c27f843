"""FusedSDPA against torch's attention on the CPU."""

from __future__ import annotations

import math

import pytest
import torch
from habana_frameworks.torch.hpex.kernels import FusedSDPA

B, H, T, S, D = 2, 4, 6, 6, 8
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def _qkv(num_key_heads=H, device="cpu", dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = ((B, H, T, D), (B, num_key_heads, S, D), (B, num_key_heads, S, D))
    tensors = [torch.randn(shape, generator=generator) for shape in shapes]
    return [t.to(device, dtype).requires_grad_() for t in tensors]


def _mask(kind):
    keep = torch.rand(B, 1, T, S, generator=torch.Generator().manual_seed(1)) > 0.4
    keep[..., 0] = True
    if kind == "bool":
        return keep
    return torch.zeros(B, 1, T, S).masked_fill(~keep, -1e9) if kind == "float" else None


def _compare(ours, theirs, out, expected):
    torch.manual_seed(2)
    grad = torch.randn(expected.shape)
    expected.backward(grad)
    out.backward(grad.to(out.device, out.dtype))
    torch.testing.assert_close(out.detach().cpu(), expected.detach(), **CLOSE)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.grad.shape == other.grad.shape
        torch.testing.assert_close(mine.grad.cpu(), other.grad, **CLOSE)


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize(
    ("mask", "is_causal"), [(None, False), (None, True), ("bool", False), ("float", False)]
)
def test_attention_equals_torchs_forward_and_backward(recompute, mask, is_causal):
    ours, theirs = _qkv(device="hpu"), _qkv()
    attend = torch.nn.functional.scaled_dot_product_attention
    expected = attend(*theirs, attn_mask=_mask(mask), is_causal=is_causal, scale=0.3)
    device_mask = None if mask is None else _mask(mask).to("hpu")
    out = FusedSDPA.apply(*ours, device_mask, 0.0, is_causal, 0.3, "None", recompute)
    _compare(ours, theirs, out, expected)


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("num_key_heads", [1, 2])
@pytest.mark.parametrize("mask", [None, "float"])
def test_grouped_queries_equal_torchs(recompute, num_key_heads, mask):
    ours, theirs = _qkv(num_key_heads, "hpu"), _qkv(num_key_heads)
    attend = torch.nn.functional.scaled_dot_product_attention
    expected = attend(*theirs, attn_mask=_mask(mask), enable_gqa=True)
    device_mask = None if mask is None else _mask(mask).to("hpu")
    out = FusedSDPA.apply(*ours, device_mask, 0.0, False, None, "None", recompute)
    _compare(ours, theirs, out, expected)


@pytest.mark.parametrize("recompute", [True, False])
def test_dropout_keeps_the_mean_and_the_backward_pass_uses_the_same_mask(recompute):
    torch.manual_seed(0)
    q, k = torch.zeros(1, 1, 64, 4, device="hpu"), torch.zeros(1, 1, 64, 4, device="hpu")
    v = torch.eye(64, device="hpu").reshape(1, 1, 64, 64).requires_grad_()
    out = FusedSDPA.apply(q, k, v, None, 0.25, False, None, "None", recompute)
    weights = out.detach().reshape(64, 64).cpu()  # v is the identity
    kept = weights > 0
    assert 0.7 < kept.float().mean() < 0.8
    torch.testing.assert_close(weights[kept], torch.full((int(kept.sum()),), 1 / 64 / 0.75))
    out.sum().backward()
    torch.testing.assert_close(v.grad.cpu()[0, 0, :, 0], weights.sum(0))
    other = FusedSDPA.apply(q, k, v, None, 0.25, False, None, "None", recompute)
    assert not torch.equal(other, out)
    torch.manual_seed(0)
    again = FusedSDPA.apply(q, k, v, None, 0.25, False, None, "None", recompute)
    assert torch.equal(again, out)


@pytest.mark.parametrize("recompute", [True, False])
def test_dropout_gradients_of_queries_and_keys_match_finite_differences(recompute):
    q, k, v = (t.detach() for t in _qkv(device="hpu"))

    def loss(query, key):
        torch.manual_seed(3)
        return FusedSDPA.apply(query, key, v, None, 0.3, False, None, "None", recompute).sum()

    for i in range(2):
        inputs = [q.clone().requires_grad_(), k.clone().requires_grad_()]
        loss(*inputs).backward()
        direction = torch.randn_like(inputs[i])
        moved = [[t.detach() for t in inputs] for _ in range(2)]
        moved[0][i] = moved[0][i] + 1e-2 * direction
        moved[1][i] = moved[1][i] - 1e-2 * direction
        slope = (loss(*moved[0]) - loss(*moved[1])) / 2e-2
        expected = (inputs[i].grad * direction).sum()
        torch.testing.assert_close(slope, expected, rtol=2e-2, atol=2e-2)


def test_dropout_does_not_wait_for_the_device():
    inputs = _qkv(device="hpu")
    with torch.hpu.metric_localcontext("host_sync") as metric:
        FusedSDPA.apply(*inputs, None, 0.1, False, None, "None", True).sum().backward()
    assert dict(metric.stats())["TotalNumber"] == 0


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("least", [-math.inf, torch.finfo(torch.float32).min, -1e4, -200.0])
def test_hidden_keys_get_no_gradient(recompute, least):
    q, k, v = _qkv(device="hpu")
    mask = torch.zeros(1, 1, T, S)
    mask[..., 2:4] = least
    FusedSDPA.apply(q, k, v, mask.to("hpu"), 0.0, False, 0.3, "None", recompute).sum().backward()
    for tensor in (k, v):
        assert not tensor.grad[:, :, 2:4].any()
        assert tensor.grad[:, :, :2].any()


def test_bf16_stays_near_fp32():
    half = _qkv(device="hpu", dtype=torch.bfloat16)
    out = FusedSDPA.apply(*half)
    assert out.dtype == torch.bfloat16
    expected = torch.nn.functional.scaled_dot_product_attention(*_qkv())
    torch.testing.assert_close(out.float().cpu(), expected, rtol=5e-2, atol=2e-2)


def test_sdp_kernel_chooses_whether_probabilities_are_kept():
    inputs = _qkv(device="hpu")
    keeps = {}
    for recompute in (True, False):
        with torch.hpu.sdp_kernel(enable_recompute=recompute):
            out = FusedSDPA.apply(*inputs)
        saved = [t.shape for t in out.grad_fn.saved_tensors if t is not None]
        keeps[recompute] = (B, H, T, S) in saved
    assert keeps == {True: False, False: True}
    assert FusedSDPA.apply(*inputs, None, 0.0, False, 1 / math.sqrt(D)).shape == (B, H, T, D)


def _apply(tensors, **settings):
    """Call FusedSDPA, which takes positional arguments only, with settings by name."""
    names = "mask dropout_p is_causal scale mode recompute valid padding dropout_mask probs window "
    names = [*names.split(), "sink"]
    defaults = [None, 0.0, False, None, "None", None, None, "left", False, False, (-1, -1), None]
    values = dict(zip(names, defaults, strict=True)) | settings
    return FusedSDPA.apply(*tensors, *values.values())


def _plain(tensors):
    return [t.detach() for t in tensors]


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("padding", ["left", "right"])
def test_padding_is_not_seen(recompute, padding):
    q, k, v = _plain(_qkv(device="hpu"))
    lengths = [4, 6]
    out = _apply(
        (q, k, v), is_causal=True, recompute=recompute, padding=padding,
        valid=torch.tensor(lengths, dtype=torch.int32, device="hpu"),
    ).cpu()  # fmt: skip
    attend = torch.nn.functional.scaled_dot_product_attention
    for i, n in enumerate(lengths):
        real = slice(S - n, S) if padding == "left" else slice(0, n)
        expected = attend(*(t[i, :, real].cpu() for t in (q, k, v)), is_causal=True)
        torch.testing.assert_close(out[i, :, real], expected, **CLOSE)
    assert out.isfinite().all()


def test_a_window_and_a_sink_are_seen():
    q, k, v = _plain(_qkv(2, device="hpu"))
    sink = torch.tensor([0.5, -1.0, 2.0, 0.0])
    arguments = {"window": (2, 1), "sink": sink.to("hpu"), "recompute": True}
    out = _apply((q, k, v), **arguments)
    keys, values = (t.cpu().repeat_interleave(2, 1) for t in (k, v))
    scores = q.cpu() @ keys.transpose(-2, -1) / math.sqrt(D)
    distance = torch.arange(S) - torch.arange(T).unsqueeze(1)
    scores = scores.masked_fill((distance < -2) | (distance > 1), float("-inf"))
    logits = torch.cat([scores, sink.reshape(1, H, 1, 1).expand(B, H, T, 1)], -1)
    expected = logits.softmax(-1)[..., :-1] @ values
    torch.testing.assert_close(out.cpu(), expected, **CLOSE)


def test_probabilities_and_what_dropout_kept_are_returned():
    q, k, v = _plain(_qkv(2, device="hpu"))
    out, probabilities, kept = _apply(
        (q, k, v), dropout_p=0.5, probs=True, dropout_mask=True, recompute=False
    )
    keys, values = (t.cpu().repeat_interleave(2, 1) for t in (k, v))
    expected = (q.cpu() @ keys.transpose(-2, -1) / math.sqrt(D)).softmax(-1)
    torch.testing.assert_close(probabilities.cpu(), expected, **CLOSE)
    assert set(kept.cpu().flatten().tolist()) == {0, 1}
    torch.testing.assert_close(out.cpu(), (expected * kept.cpu() * 2) @ values, **CLOSE)
    out, kept = _apply(_qkv(device="hpu"), dropout_mask=True, recompute=False)
    assert kept.numel() == 0
    assert out.requires_grad


def test_a_mask_of_two_dims_holds_for_all_heads():
    q, k, v = _plain(_qkv(device="hpu"))
    mask = _mask("float")[0, 0]
    expected = torch.nn.functional.scaled_dot_product_attention(q.cpu(), k.cpu(), v.cpu(), mask)
    torch.testing.assert_close(_apply((q, k, v), mask=mask.to("hpu")).cpu(), expected, **CLOSE)


def test_no_tokens_give_no_output():
    q, k, v = _plain(_qkv(device="hpu"))
    assert _apply((q[:, :, :0], k, v)).shape == (B, H, 0, D)


LENGTHS = torch.ones(B, dtype=torch.int32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "exact"}, "softmax_mode='exact' is none of none, fast, fp32"),
        ({"dropout_p": 1.0}, r"dropout_p=1.0 is not a probability"),
        ({"valid": LENGTHS}, "valid_seq_len only with is_causal=True and without gradients"),
        ({"probs": True}, "probabilities only without gradients"),
        ({"dropout_mask": True, "recompute": True}, "no dropout mask when it recomputes"),
        ({"window": (1, 1)}, "window_size and sink only without gradients"),
        ({"mode": "fp32"}, "softmax_mode='fp32' takes bfloat16, got torch.float32"),
        ({"mode": "fast", "recompute": True}, "only with is_causal=True. Pass softmax_mode='None'"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        _apply(_qkv(device="hpu"), **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"valid": LENGTHS}, "valid_seq_len only with is_causal=True"),
        ({"valid": LENGTHS, "is_causal": True, "padding": "both"}, "'both' is neither left nor"),
        ({"window": (1, 1), "recompute": False}, "with recompute_mode=True"),
        ({"sink": torch.ones(3), "recompute": True}, r"shape \(3,\) and there are 4 query heads"),
    ],
)
def test_arguments_of_inference_that_do_not_go_together_are_refused(changes, message):
    on_device = {k: v.to("hpu") if isinstance(v, torch.Tensor) else v for k, v in changes.items()}
    with pytest.raises(ValueError, match=message):
        _apply(_plain(_qkv(device="hpu")), **on_device)


def test_head_counts_that_do_not_divide_are_refused():
    q, _, _ = _qkv(device="hpu")
    k = torch.ones(B, 3, S, D, device="hpu")
    with pytest.raises(ValueError, match="got 4 query heads and 3 key heads"):
        FusedSDPA.apply(q, k, k)


def test_it_is_one_launch_forward_and_one_backward():
    query, key, value = (torch.randn(1, 2, 8, 4, device="hpu").requires_grad_() for _ in range(3))
    upstream = torch.ones(1, 2, 8, 4, device="hpu")
    with torch.hpu.metric_localcontext("launch") as metric:
        attended = FusedSDPA.apply(query, key, value, None, 0.0, True)
        assert metric.stats() == [("TotalNumber", 1)]
        torch.autograd.grad(attended, (query, key, value), upstream)
    assert metric.stats() == [("TotalNumber", 2)]
