"""The kernels that are not attention, against torch on the CPU; and those that refuse."""

from __future__ import annotations

import importlib

import pytest
import torch
from habana_frameworks.torch.hpex import kernels
from habana_frameworks.torch.hpex.kernels import CTCLoss, CustomSoftmax, PySDPA, PySDPAHinted
from habana_frameworks.torch.hpex.kernels.softmax import triu_masked_softmax

T, N, C, S = 12, 3, 5, 4
KERNELS = "habana_frameworks.torch.hpex.kernels"


@pytest.mark.parametrize("zero_infinity", [True, False])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_ctc_loss_equals_torchs(reduction, zero_infinity):
    generator = torch.Generator().manual_seed(0)
    theirs = torch.randn(T, N, C, generator=generator).log_softmax(-1).requires_grad_()
    ours = theirs.detach().to("hpu").requires_grad_()
    targets = torch.randint(1, C, (N, S), generator=generator)
    lengths = torch.tensor([T, T, 2 if zero_infinity else T]), torch.tensor([4, 2, 4])
    expected = torch.nn.functional.ctc_loss(
        theirs, targets, *lengths, reduction=reduction, zero_infinity=zero_infinity
    )
    loss = CTCLoss.apply(
        ours, *(t.to("hpu") for t in (targets, *lengths)), 0, reduction, zero_infinity
    )
    torch.testing.assert_close(loss.cpu(), expected)
    expected.sum().backward()
    loss.sum().backward()
    torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


@pytest.mark.parametrize("flavor", [0, 1, 2])
def test_custom_softmax_normalizes_bf16(flavor):
    theirs = torch.randn(3, 7, generator=torch.Generator().manual_seed(0)).requires_grad_()
    ours = theirs.detach().to("hpu", torch.bfloat16).requires_grad_()
    out, expected = CustomSoftmax.apply(ours, flavor), theirs.softmax(-1)
    torch.testing.assert_close(out.float().cpu(), expected, rtol=2e-2, atol=2e-2)
    assert out.dtype == torch.bfloat16
    weights = torch.arange(7.0)
    (out * weights.to("hpu", torch.bfloat16)).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(ours.grad.float().cpu(), theirs.grad, rtol=5e-2, atol=5e-2)


def test_custom_softmax_refuses_what_the_card_refuses():
    with pytest.raises(ValueError, match=r"takes bfloat16, got torch.float32"):
        CustomSoftmax.apply(torch.ones(2, device="hpu"), 0)
    with pytest.raises(ValueError, match=r"flavor=3 is none of \(0, 1, 2\)"):
        CustomSoftmax.apply(torch.ones(2, device="hpu", dtype=torch.bfloat16), 3)


def test_rows_of_a_triangle_are_normalized_and_have_gradients():
    theirs = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    ours = theirs.detach().to("hpu").requires_grad_()
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected = theirs.masked_fill(future, float("-inf")).softmax(-1)
    out = triu_masked_softmax(ours)
    torch.testing.assert_close(out.cpu(), expected)
    out.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


def test_scaled_masked_softmax():
    x, mask = (torch.randn(2, 5, generator=torch.Generator().manual_seed(i)) for i in range(2))
    out = torch.ops.hpu.scaled_masked_softmax(x.to("hpu"), mask.to("hpu"), 0.5)
    torch.testing.assert_close(out.cpu(), (x * 0.5 + mask).softmax(-1))


@pytest.mark.parametrize("function", [PySDPA, PySDPAHinted])
def test_composed_attention_equals_torchs(function):
    generator = torch.Generator().manual_seed(0)
    theirs = [torch.randn(2, 3, 6, 8, generator=generator).requires_grad_() for _ in range(3)]
    ours = [t.detach().to("hpu").requires_grad_() for t in theirs]
    expected = torch.nn.functional.scaled_dot_product_attention(*theirs, is_causal=True)
    out = function.apply(*ours, True, True)
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-4, atol=1e-5)
    out.square().sum().backward()
    expected.square().sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad.cpu(), other.grad, rtol=1e-4, atol=1e-5)


def test_composed_attention_refuses_what_fails_on_a_card():
    x = torch.ones(1, 1, 2, 2, device="hpu")
    with pytest.raises(ValueError, match="PySDPA without is_causal fails in the vendor's release"):
        PySDPA.apply(x, x, x)
    with pytest.raises(ValueError, match="PySDPA takes tensors of 4 dims, got 3"):
        PySDPA.apply(x[0], x[0], x[0], True)


@pytest.mark.parametrize(
    ("module", "name", "why"),
    [
        ("", "flex_attention_fwd", "Use FusedSDPA, or flex_attention on the CPU"),
        ("", "flex_attention_bwd", "Use FusedSDPA, or flex_attention on the CPU"),
        ("", "mixture_of_experts_fwd_fp8_wrapper", "between the two passes is not documented"),
        ("", "mixture_of_experts_bwd_fp8_wrapper", "between the two passes is not documented"),
        (".RandomSeed", "random_seed", "Use torch.hpu.manual_seed"),
        (".EmbeddingBag", "forward", "Use torch.nn.functional.embedding_bag"),
        (".EmbeddingBag", "backward", "Use torch.nn.functional.embedding_bag"),
        (".EmbeddingBagPreproc", "forward", "Use torch.nn.functional.embedding_bag"),
    ],
)
def test_what_needs_the_silicon_exists_and_refuses_with_the_reason(module, name, why):
    function = getattr(importlib.import_module(KERNELS + module), name)
    assert why in function.__doc__
    with pytest.raises(NotImplementedError, match=rf"{name} is not available .* {why}"):
        function(torch.ones(1), 2, three=3)


def test_modules_have_the_vendors_names_too():
    for theirs, name in {
        "CTCLoss": "CTCLoss",
        "FusedSDPA": "FusedSDPA",
        "Fp8FusedSDPA": "fp8_fused_sdpa",
        "PySDPA": "PySDPA",
        "RotaryPosEmbeddingHelper": "apply_rotary_pos_emb",
    }.items():
        module = importlib.import_module(f"{KERNELS}.{theirs}")
        assert getattr(module, name) is getattr(kernels, name)
