"""Fused attention has the numbers of attention in operators on the CPU."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from lightning_gaudi.attention import fused_attention, fused_sdpa
from tests.attention.dropouts import record
from tests.attention.reference import B, D, H, T, attend, compare, masks, qkv


@pytest.fixture(autouse=True)
def _fused():
    with fused_attention():
        yield


@pytest.mark.parametrize("num_key_heads", [H, 2, 1])
@pytest.mark.parametrize("name", masks())
def test_masks_and_grouped_heads(name, num_key_heads):
    ours, theirs = qkv(num_key_heads, device="hpu"), qkv(num_key_heads)
    mask, is_grouped = masks()[name], num_key_heads < H
    expected = attend(*theirs, attn_mask=mask, enable_gqa=is_grouped)
    out = fused_sdpa(*ours, attn_mask=mask.to("hpu"), enable_gqa=is_grouped)
    compare(ours, theirs, out, expected)


@pytest.mark.parametrize("num_keys", [T, T + 3, T - 2])
@pytest.mark.parametrize("is_causal", [True, False])
def test_causality_begins_top_left(is_causal, num_keys):
    ours, theirs = qkv(num_keys=num_keys, device="hpu"), qkv(num_keys=num_keys)
    expected = attend(*theirs, is_causal=is_causal, scale=0.3)
    out = F.scaled_dot_product_attention(*ours, is_causal=is_causal, scale=0.3)
    compare(ours, theirs, out, expected)


@pytest.mark.parametrize("recompute", [True, False])
def test_both_kernels(recompute):
    ours, theirs, mask = qkv(device="hpu"), qkv(), masks()["rows that see nothing"]
    with torch.hpu.sdp_kernel(enable_recompute=recompute):
        out = F.scaled_dot_product_attention(*ours, attn_mask=mask.to("hpu"))
    compare(ours, theirs, out, attend(*theirs, attn_mask=mask))


def test_values_of_another_size_and_tensors_without_heads():
    ours, theirs = qkv(value_dim=3, device="hpu"), qkv(value_dim=3)
    compare(ours, theirs, F.scaled_dot_product_attention(*ours), attend(*theirs))
    ours, theirs = ([t.detach()[:, 0].requires_grad_() for t in ts] for ts in (ours, theirs))
    mask = masks()["causal for all"]
    out = F.scaled_dot_product_attention(*ours, attn_mask=mask.to("hpu"))
    compare(ours, theirs, out, attend(*theirs, attn_mask=mask))


def test_half_precision_stays_near_fp32():
    mask, dtype = masks()["rows that see nothing as numbers"], torch.bfloat16
    out = fused_sdpa(*qkv(device="hpu", dtype=dtype), attn_mask=mask.to("hpu", dtype))
    assert out.dtype == dtype
    expected = attend(*qkv(), attn_mask=mask).detach()
    torch.testing.assert_close(out.detach().float().cpu(), expected, rtol=2e-2, atol=2e-2)


def test_autocast_computes_in_its_precision_and_hides_what_its_mask_hides():
    ours, theirs = qkv(device="hpu"), qkv()
    hidden = masks()["padding"].logical_not()
    mask = torch.zeros(B, 1, 1, T).masked_fill(hidden, torch.finfo(torch.float32).min)
    with torch.autocast("hpu", dtype=torch.bfloat16):
        out = F.scaled_dot_product_attention(*ours, attn_mask=mask.to("hpu"))
    assert out.dtype == torch.bfloat16
    expected = attend(*theirs, attn_mask=mask)
    torch.testing.assert_close(out.float().cpu(), expected, rtol=2e-2, atol=2e-2)
    out.float().sum().backward()
    assert all(t.grad.dtype == torch.float32 and t.grad.isfinite().all() for t in ours)


def test_dropout_leaves_out_its_share_and_the_backward_pass_the_same():
    torch.manual_seed(0)
    q, k = torch.zeros(2, 1, 1, 64, 4, device="hpu")
    v = torch.eye(64, device="hpu").reshape(1, 1, 64, 64).requires_grad_()
    mask = torch.arange(64, device="hpu") < 48
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.expand(64, 64), dropout_p=0.25)
    weights = out.detach().reshape(64, 64).cpu()  # v is the identity
    assert not weights[:, 48:].any()
    kept = weights[:, :48] > 0
    assert 0.7 < kept.float().mean() < 0.8
    torch.testing.assert_close(weights[:, :48][kept], torch.full((int(kept.sum()),), 1 / 36))
    out.sum().backward()
    torch.testing.assert_close(v.grad.cpu()[0, 0, :, 0], weights.sum(0))


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("name", [*masks(), None])
def test_dropout_is_that_of_operators_that_leave_out_the_same(name, recompute, monkeypatch):
    kept = record(monkeypatch)
    mask = None if name is None else masks()[name]
    on_card = None if mask is None else mask.to("hpu")
    ours, theirs = qkv(device="hpu"), qkv()
    settings = {"dropout_p": 0.4, "is_causal": mask is None}
    with torch.hpu.sdp_kernel(enable_recompute=recompute):
        out = F.scaled_dot_product_attention(*ours, attn_mask=on_card, **settings)
    (weights,) = kept
    # With unit vectors for values the output are the weights.
    units = torch.eye(T).expand(B, H, T, T)
    dropped = attend(*theirs[:2], units, attn_mask=mask, is_causal=mask is None) * weights / 0.6
    compare(ours, theirs, out, dropped @ theirs[2])


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_repeats_the_same_dropout(use_reentrant):
    def loss(*tensors):
        return F.scaled_dot_product_attention(*tensors, dropout_p=0.5).square().sum()

    gradients = []
    for checkpointed in (False, True):
        tensors = qkv(device="hpu")
        torch.manual_seed(3)
        if checkpointed:
            checkpoint = torch.utils.checkpoint.checkpoint
            checkpoint(loss, *tensors, use_reentrant=use_reentrant).backward()
        else:
            loss(*tensors).backward()
        gradients.append([t.grad.cpu() for t in tensors])
    torch.testing.assert_close(*gradients)
    assert all(g.any() for g in gradients[0])


def test_a_training_step_does_not_wait_for_the_device():
    tensors, mask = qkv(device="hpu"), masks()["rows that see nothing"].to("hpu")
    with torch.hpu.metric_localcontext("host_sync") as metric:
        fused_sdpa(*tensors, attn_mask=mask, dropout_p=0.1).sum().backward()
    assert dict(metric.stats())["TotalNumber"] == 0


def test_a_second_derivative_is_refused():
    q, k, v = qkv(device="hpu")
    out = F.scaled_dot_product_attention(q, k, v).sum()
    with pytest.raises(RuntimeError, match=r"create_graph=True.*fused_attention\(False\)"):
        torch.autograd.grad(out, q, create_graph=True)


def test_what_it_cannot_compute_is_refused_with_the_reason():
    q, k, v = qkv(device="hpu")
    bias = torch.zeros(T, T, device="hpu", requires_grad=True)
    shape = rf"shapes \({B}, {H}, 1, {T}, {D}\)"
    for arguments, message in (
        ((*qkv(),), "queries are on cpu"),
        ((q, k, v, bias), "the mask wants a gradient"),
        ((*(t[:, :, None] for t in (q, k, v)),), shape),
        ((q, k[:, :2], v[:, :2]), rf"shapes \({B}, {H}, {T}, {D}\), \({B}, 2, {T}, {D}\)"),
        ((q, k, v, bias.detach(), 0.0, True), "a mask on the HPU or is_causal=True, but not both"),
        ((q, k, v, None, 1.0), "0 <= dropout_p < 1"),
        ((q.bfloat16(), k, v), "float32 or bfloat16, the same for all"),
    ):
        with pytest.raises(ValueError, match=message):
            fused_sdpa(*arguments)
