"""The fused kernel of attention against operators in float32 on the CPU.

The kernel's softmax and products are in another order than the CPU's, and may hold fewer bits of
them: 2e-3 in fp32 as in `test_training.py`, and 5e-2 in bf16.

B batch, H heads, G key heads, T tokens, D head dim.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

from lightning_gaudi._core import vendor
from lightning_gaudi.attention import fused_attention, fused_sdpa

B, H, T, D = 2, 4, 128, 64
FP32, BF16 = 2e-3, 5e-2


def _masks() -> dict[str, Tensor | None]:
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    padding = (torch.arange(T) < torch.tensor([[T], [T - 40]]))[:, None, None]
    rows = (padding & causal).clone()
    rows[0, 0, 3] = False
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])[None, :, None, None]
    alibi = (slopes * torch.arange(T)).masked_fill(~causal, -torch.inf)
    return {
        "none": None,
        "padding": padding,
        "padding and causal": padding & causal,
        "numbers of each head": alibi,
        "rows that see nothing": rows,
    }


MASKS = _masks()


def _tensors(num_key_heads: int = H) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    heads = (H, num_key_heads, num_key_heads)
    return [torch.randn(B, each, T, D, generator=generator) for each in heads]


def _train(tensors: list[Tensor], attend: object, **settings: object) -> list[Tensor]:
    """The output and the gradients, in float32 on the CPU."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    assert callable(attend)
    out = attend(*leaves, **settings)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    out.backward(upstream.to(out.device, out.dtype))
    gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
    assert len(gradients) == len(leaves)
    return [t.detach().cpu().float() for t in (out, *gradients)]


def _expected(num_key_heads: int = H, **settings: object) -> list[Tensor]:
    with sdpa_kernel(SDPBackend.MATH):
        return _train(_tensors(num_key_heads), F.scaled_dot_product_attention, **settings)


def _on_card(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.to("hpu")


@pytest.mark.parametrize("name", MASKS)
def test_the_kernel_computes_what_operators_do(name: str) -> None:
    mask = MASKS[name]
    tensors = [t.to("hpu") for t in _tensors()]
    found = _train(tensors, fused_sdpa, attn_mask=_on_card(mask))
    torch.testing.assert_close(found, _expected(attn_mask=mask), rtol=FP32, atol=FP32)


@pytest.mark.parametrize("recompute", [True, False])
def test_causality_and_grouped_heads(recompute: bool) -> None:
    """With the probabilities kept for the backward pass, and computed again."""
    tensors = [t.to("hpu") for t in _tensors(2)]
    settings = {"is_causal": True, "enable_gqa": True}
    with torch.hpu.sdp_kernel(enable_recompute=recompute):
        found = _train(tensors, fused_sdpa, **settings)
    torch.testing.assert_close(found, _expected(2, **settings), rtol=FP32, atol=FP32)


def test_bf16() -> None:
    mask = MASKS["numbers of each head"]
    tensors = [t.to("hpu", torch.bfloat16) for t in _tensors()]
    found = _train(tensors, fused_sdpa, attn_mask=_on_card(mask))
    torch.testing.assert_close(found, _expected(attn_mask=mask), rtol=BF16, atol=BF16)


def test_torchs_function_is_the_kernel_where_the_switch_says_so() -> None:
    query, key, value = (t.to("hpu").requires_grad_() for t in _tensors())
    for enabled in (True, False):
        with fused_attention(enabled):
            out = F.scaled_dot_product_attention(query, key, value)
        assert ("FusedSDPA" in type(out.grad_fn).__name__) == enabled


def test_dropout_is_the_same_forward_and_backward() -> None:
    """Equal scores and unit vectors as values: the output is what is left of the weights."""
    query, key = torch.zeros(2, 1, 1, D, D).to("hpu")
    value = torch.eye(D).reshape(1, 1, D, D).to("hpu").requires_grad_()
    out = fused_sdpa(query, key, value, dropout_p=0.5)
    out.sum().backward()
    weights = out.detach().cpu().reshape(D, D)
    assert 0.3 < (weights > 0).float().mean() < 0.7
    assert value.grad is not None
    torch.testing.assert_close(value.grad.cpu()[0, 0, :, 0], weights.sum(0), rtol=FP32, atol=FP32)


@pytest.mark.filterwarnings("default")  # the compiler's own deprecations
@pytest.mark.parametrize("name", ["none", "padding and causal", "numbers of each head"])
def test_a_compiled_graph_has_the_kernel(name: str) -> None:
    if vendor.is_lazy():
        pytest.skip("needs eager mode: PT_HPU_LAZY_MODE=0 (`make test-gaudi` runs both modes)")
    mask = MASKS[name]
    torch.compiler.reset()
    compiled = torch.compile(F.scaled_dot_product_attention, fullgraph=True)
    with fused_attention():
        tensors = [t.to("hpu") for t in _tensors()]
        found = _train(tensors, compiled, attn_mask=_on_card(mask))
    torch.compiler.reset()
    torch.testing.assert_close(found, _expected(attn_mask=mask), rtol=FP32, atol=FP32)
