"""The allocator's figures."""

from __future__ import annotations

import gc

import pytest
import torch

from lightning_gaudi import HPUAccelerator
from lightning_gaudi._core import vendor
from tests.helpers import vendor_names

NUM_BYTES = 64 * 2**20


@pytest.fixture(scope="module", autouse=True)
def _without_garbage() -> None:
    gc.collect()


def _settle() -> None:
    vendor.mark_step()
    vendor.synchronize()


def _in_use() -> int:
    _settle()
    return vendor.memory_stats()["InUse"]


def test_figures_have_the_vendors_names() -> None:
    stats = vendor.memory_stats()
    assert set(vendor_names.MEMORY_STATS) <= set(stats)
    assert all(isinstance(value, int) and value >= 0 for value in stats.values())


def test_limit_is_the_memory_of_a_gaudi() -> None:
    """Gaudi has 32 GiB, Gaudi 2 96, Gaudi 3 128; the driver keeps some of it."""
    gib = vendor.memory_stats()["Limit"] / 2**30
    assert 16 < gib <= 144


def test_a_tensor_is_counted_and_its_end_too() -> None:
    before = _in_use()
    tensor = torch.ones(NUM_BYTES, dtype=torch.uint8, device="hpu")
    during = _in_use()
    assert during >= before + NUM_BYTES
    assert int(tensor[-1]) == 1
    del tensor
    assert _in_use() <= during - NUM_BYTES


def test_peak_stays_until_it_is_reset() -> None:
    before = _in_use()
    tensor = torch.ones(NUM_BYTES, dtype=torch.uint8, device="hpu")
    _settle()
    del tensor
    _settle()
    peak = vendor.memory_stats()["MaxInUse"]
    assert peak >= before + NUM_BYTES
    vendor.reset_peak_memory_stats()
    assert vendor.memory_stats()["MaxInUse"] < peak


def test_memory_functions_agree_with_the_figures() -> None:
    _settle()
    stats = vendor.memory_stats()
    assert torch.hpu.memory_allocated() == stats["InUse"]
    assert torch.hpu.max_memory_allocated() == stats["MaxInUse"]
    assert torch.hpu.mem_get_info() == (stats["Limit"] - stats["InUse"], stats["Limit"])


def test_lightning_reports_the_figures() -> None:
    stats = HPUAccelerator().get_device_stats(torch.device("hpu"))
    assert set(vendor_names.MEMORY_STATS) <= set(stats)
