"""Names by which libraries take an HPU to have a feature: they work, or are not there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_gaudi._core import vendor


def test_torch_accelerator_tells_an_hpus_memory() -> None:
    memory = torch.accelerator.memory
    before = torch.accelerator.memory_allocated()
    kept = torch.ones(1 << 20, device="hpu")
    assert torch.accelerator.memory_allocated() - before >= kept.nbytes
    assert memory.max_memory_allocated() >= memory.memory_allocated()
    assert memory.memory_reserved() == vendor.memory_stats()["Limit"]
    free, total = torch.accelerator.get_memory_info()
    assert total - free == vendor.memory_stats()["InUse"]
    del kept
    torch.accelerator.empty_cache()
    torch.accelerator.memory.empty_host_cache()
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.reset_accumulated_memory_stats()
    stats = torch.accelerator.memory_stats()
    assert stats["allocated_bytes.all.peak"] == stats["allocated_bytes.all.current"]


def test_a_module_that_is_wrapped_in_an_hpu_graph_in_eager_mode_runs() -> None:
    module = nn.Linear(2, 2).to("hpu")
    x = torch.ones(1, 2, device="hpu")
    expected = module(x)
    with pytest.warns(UserWarning, match="HPU graphs are of lazy mode"):
        found = torch.hpu.wrap_in_hpu_graph(module, disable_tensor_cache=True)
    assert found is module
    torch.testing.assert_close(found(x), expected)
