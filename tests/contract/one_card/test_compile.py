"""`torch.compile` on the card; an eager-mode feature."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from torch import nn

from lightning_gaudi._core import vendor
from tests.helpers import vendor_names

# torch's own, where it imports inductor.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")


@pytest.fixture(autouse=True)
def _needs_eager_mode() -> None:
    if vendor.is_lazy():
        pytest.skip("needs eager mode: PT_HPU_LAZY_MODE=0 (`make test-gaudi` runs both modes)")


def test_the_vendors_compiler_is_registered() -> None:
    assert vendor_names.COMPILE_BACKEND in torch._dynamo.list_backends()


@pytest.mark.parametrize("settings", [{"backend": vendor_names.COMPILE_BACKEND}, {}])
def test_a_compiled_module_computes_what_the_module_does(settings: dict[str, str]) -> None:
    """Without a backend too: the package names the vendor's. 1e-3 is fp32 on the card."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).to("hpu")
    inputs = torch.randn(5, 8).to("hpu")
    compiled = torch.compile(module, **settings)
    expected = module(inputs).pow(2).mean()
    expected.backward()
    gradients = [p.grad.cpu() for p in module.parameters() if p.grad is not None]
    module.zero_grad()
    result = compiled(inputs).pow(2).mean()
    result.backward()
    torch.testing.assert_close(result.cpu(), expected.cpu(), rtol=1e-3, atol=1e-3)
    for parameter, gradient in zip(module.parameters(), gradients, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad.cpu(), gradient, rtol=1e-3, atol=1e-3)
