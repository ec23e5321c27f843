"""One card for each process, and what it says of itself."""

from __future__ import annotations

import os
import re

import lightning.pytorch as pl
import pytest
import torch
from torch.utils.data import DataLoader

from lightning_gaudi import HPUAccelerator
from lightning_gaudi._core import vendor

HPU = torch.device("hpu", 0)


def test_there_is_a_card() -> None:
    assert torch.hpu.is_available()
    assert 1 <= torch.hpu.device_count() <= 8
    assert torch.hpu.device_count() == vendor.device_count()


def test_the_card_of_a_process_is_index_0() -> None:
    assert torch.ones(1, device="hpu").device == HPU
    assert torch.ones(1).to("hpu").device == HPU
    assert torch.hpu.current_device() == 0


def test_the_device_says_that_it_is_started() -> None:
    """After a call of its Python API; in release 1.19 a tensor alone does not set the flag."""
    vendor.synchronize()
    assert vendor.is_initialized()


def test_name_is_a_product_that_we_know() -> None:
    """Gaudi 2 and 3 come in variants with a letter."""
    assert re.fullmatch(r"GAUDI([23][A-Z]?)?", vendor.device_name())


def test_properties_are_a_text_that_tells_the_memory() -> None:
    properties = torch.hpu.get_device_properties()
    assert isinstance(properties, str)
    assert re.search(r"dramSize\s*=\s*\w+", properties)
    assert isinstance(torch.hpu.get_device_capability(), str)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.bool]
)
def test_values_survive_the_way_to_the_card_and_back(dtype: torch.dtype) -> None:
    """int64 is held as int32 in lazy mode; these values fit."""
    values = torch.tensor([[0, 1, 2], [100, 127, 3]]).to(dtype)
    there = values.to("hpu")
    assert there.device.type == "hpu"
    assert there.dtype == dtype
    assert torch.equal(there.cpu(), values)
    assert torch.equal(there.t().contiguous().cpu(), values.t())


def test_matrix_product_is_that_of_the_cpu_within_fp32() -> None:
    """1e-3: the card sums the 256 products in another order, and may hold them less exactly."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 256, generator=generator) for _ in range(2))
    product = a.to("hpu") @ b.to("hpu").t()
    torch.testing.assert_close(product.cpu(), a @ b.t(), rtol=1e-3, atol=1e-3)


def test_gradients_are_those_of_the_cpu_within_fp32() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(16, 32, generator=generator)
    gradients = []
    for device in ("cpu", "hpu"):
        weight = values.detach().to(device).requires_grad_()
        torch.nn.functional.gelu(weight @ weight.t()).mean().backward()
        assert weight.grad is not None
        gradients.append(weight.grad.cpu())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-4)


def test_synchronize_waits_for_copies_of_pinned_batches() -> None:
    (source,) = DataLoader(torch.arange(1024.0), batch_size=1024, pin_memory=True)
    assert source.is_pinned()
    there = source.to("hpu", non_blocking=True)
    back = there.add(1).to("cpu", non_blocking=True)
    vendor.mark_step()
    vendor.synchronize()
    assert torch.equal(back, source + 1)


def test_mode_is_the_one_that_was_asked_for() -> None:
    asked = os.environ.get("PT_HPU_LAZY_MODE")
    if asked is not None:
        assert vendor.is_lazy() == (asked != "0")


def test_lightning_finds_the_card() -> None:
    assert HPUAccelerator.is_available()
    trainer = pl.Trainer(accelerator="auto", devices=1, logger=False, enable_checkpointing=False)
    assert isinstance(trainer.accelerator, HPUAccelerator)
    assert trainer.strategy.root_device == HPU
