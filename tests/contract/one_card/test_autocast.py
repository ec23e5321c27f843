"""`torch.autocast("hpu")`: which operations run in bf16, which in fp32.

Source: the vendor's "Mixed Precision Training with PyTorch Autocast", Registered Operators. The
lists themselves are in `lightning_gaudi._core.autocast_ops`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from lightning_gaudi._core.precision import autocast_ops

Run = Callable[[torch.Tensor], torch.Tensor]

LOWER: dict[str, Run] = {
    "addmm": lambda x: torch.addmm(x, x, x),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "conv1d": lambda x: functional.conv1d(x[None], x[:, :, None]),
    "conv2d": lambda x: functional.conv2d(x[None, None], x[None, None, :2, :2]),
    "dropout": lambda x: functional.dropout(x, 0.5),
    "group_norm": lambda x: functional.group_norm(x[None], 2),
    "layer_norm": lambda x: functional.layer_norm(x, (4,)),
    "linear": lambda x: functional.linear(x, x),
    "log_softmax": lambda x: x.log_softmax(-1),
    "matmul": lambda x: torch.matmul(x, x),
    "mean": lambda x: x.mean(),
    "mul": lambda x: torch.mul(x, x),
    "scaled_dot_product_attention": lambda x: functional.scaled_dot_product_attention(
        x[None, None], x[None, None], x[None, None]
    ),
    "softmax": lambda x: x.softmax(-1),
}
FP32: dict[str, Run] = {
    "binary_cross_entropy_with_logits": lambda x: functional.binary_cross_entropy_with_logits(x, x),
    "cross_entropy_loss": lambda x: functional.cross_entropy(x, x.argmax(-1)),
    "div": lambda x: torch.div(x, x),
    "embedding": lambda x: functional.embedding(torch.tensor([1], device="hpu"), x),
    "exp": torch.exp,
    "log": torch.log,
    "mse_loss": lambda x: functional.mse_loss(x, x),
    "nll_loss": lambda x: functional.nll_loss(x, x.argmax(-1)),
    "pow": lambda x: torch.pow(x, 2),
    "rsqrt": torch.rsqrt,
    "softplus": functional.softplus,
}


@pytest.fixture
def inputs() -> torch.Tensor:
    return torch.rand(4, 4, generator=torch.Generator().manual_seed(0)).add(0.1).to("hpu")


@pytest.mark.parametrize("name", LOWER)
def test_lower_precision_list_runs_in_bf16(name: str, inputs: torch.Tensor) -> None:
    assert name in autocast_ops.LOWER_PRECISION_OPS.split()
    with torch.autocast("hpu", torch.bfloat16):
        results = [LOWER[name](inputs), LOWER[name](inputs.bfloat16())]
    assert [result.dtype for result in results] == [torch.bfloat16] * 2
    assert all(result.isfinite().all() for result in results)


@pytest.mark.parametrize("name", FP32)
def test_fp32_list_runs_in_fp32(name: str, inputs: torch.Tensor) -> None:
    assert name in autocast_ops.FP32_OPS.split()
    with torch.autocast("hpu", torch.bfloat16):
        results = [FP32[name](inputs), FP32[name](inputs.bfloat16())]
    assert [result.dtype for result in results] == [torch.float32] * 2
    assert all(result.isfinite().all() for result in results)


def test_promote_list_takes_the_widest_of_its_arguments(inputs: torch.Tensor) -> None:
    low = inputs.bfloat16()
    with torch.autocast("hpu", torch.bfloat16):
        assert (low + low).dtype == torch.bfloat16
        assert (low + inputs).dtype == torch.float32
        assert torch.cat([low, inputs]).dtype == torch.float32


def test_bf16_result_is_that_of_bf16_inputs(inputs: torch.Tensor) -> None:
    with torch.autocast("hpu", torch.bfloat16):
        under_autocast = inputs @ inputs
    low = inputs.bfloat16()
    assert torch.equal(under_autocast.cpu(), (low @ low).cpu())


def test_gradient_of_a_cast_weight_has_its_type(inputs: torch.Tensor) -> None:
    weight = inputs.clone().requires_grad_()
    with torch.autocast("hpu", torch.bfloat16):
        loss = (inputs @ weight).exp().sum()
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32


def test_disabled_region_runs_as_it_is(inputs: torch.Tensor) -> None:
    with torch.autocast("hpu", torch.bfloat16), torch.autocast("hpu", enabled=False):
        assert (inputs @ inputs).dtype == torch.float32
    assert (inputs @ inputs).dtype == torch.float32
