"""Fused attention in graphs of torch.compile, without a break."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from lightning_gaudi import simulator
from lightning_gaudi.attention import fused_attention
from tests.attention.reference import B, T, attend, compare, masks, qkv

pytestmark = pytest.mark.filterwarnings("default")  # the compiler's own deprecations


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def _compiled(**settings):
    def f(*tensors):
        return F.scaled_dot_product_attention(*tensors, **settings)

    return torch.compile(f, backend="hpu_backend", fullgraph=True)


@pytest.mark.parametrize("name", ["padding", "packing", "rows that see nothing", None])
def test_training(name):
    ours, theirs = qkv(device="hpu"), qkv()
    mask = None if name is None else masks()[name]
    with fused_attention():
        settings = {"is_causal": True} if mask is None else {"attn_mask": mask.to("hpu")}
        out = _compiled(**settings)(*ours)
    settings = {"is_causal": True} if mask is None else {"attn_mask": mask}
    compare(ours, theirs, out, attend(*theirs, **settings))


def test_inference_and_grouped_heads():
    ours, theirs = qkv(2, device="hpu"), qkv(2)
    with fused_attention(), torch.no_grad():
        out = _compiled(enable_gqa=True)(*ours)
    torch.testing.assert_close(out.cpu(), attend(*theirs, enable_gqa=True).detach())


def test_autocast():
    ours, mask = qkv(device="hpu"), masks()["padding as numbers"]
    with fused_attention(), torch.autocast("hpu", dtype=torch.bfloat16):
        out = _compiled(attn_mask=mask.to("hpu"))(*ours)
    assert out.dtype == torch.bfloat16
    expected = attend(*qkv(), attn_mask=mask)
    torch.testing.assert_close(out.float().cpu(), expected, rtol=2e-2, atol=2e-2)


def test_dropout_is_the_same_forward_and_backward():
    q, k = torch.zeros(2, 1, 1, 16, 4, device="hpu")
    v = torch.eye(16, device="hpu").reshape(1, 1, 16, 16).requires_grad_()
    with fused_attention():
        out = _compiled(dropout_p=0.5)(q, k, v)
    out.sum().backward()
    weights = out.detach().reshape(16, 16).cpu()
    assert 0 < (weights > 0).float().mean() < 1
    torch.testing.assert_close(v.grad.cpu()[0, 0, :, 0], weights.sum(0))


def test_the_switch_is_part_of_what_a_graph_is_compiled_for():
    ours, f = [t.detach() for t in qkv(device="hpu")], _compiled()
    with torch.hpu.metric_localcontext("graph_compilation") as metric:
        for enabled in (True, False, True):
            with fused_attention(enabled):
                f(*ours)
    assert dict(metric.stats())["TotalNumber"] == 2


def test_what_stays_with_torch_says_so_while_it_is_compiled():
    ours = [*qkv(device="hpu"), torch.zeros(T, T, device="hpu", requires_grad=True)]
    theirs = [*qkv(), torch.zeros(T, T, requires_grad=True)]
    with (
        fused_attention(),
        pytest.warns(UserWarning, match="not fused: the mask wants a gradient"),
    ):
        out = _compiled()(*ours)
    compare(ours, theirs, out, attend(*theirs))


def test_an_encoder_layer_is_one_graph_each_way():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).to("hpu")
    x = torch.randn(B, T, 16, device="hpu")
    upstream = torch.ones_like(x)
    compiled = torch.compile(layer, backend="hpu_backend", fullgraph=True)
    with fused_attention():
        compiled(x).backward(upstream)
        before = simulator.launches()
        compiled(x).backward(upstream)
    # Forward, backward, and adding to the gradients that are there.
    assert simulator.launches() - before == 2 + len(list(layer.parameters()))
