"""What the host waits for: counted, and in lazy mode the end of the graph.

The list is torch's: the operators that it tags, since their result, or its shape, depends on data,
and those that it composes by what they read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import _hpu_sim
import pytest
import torch
from torch.nn import functional

from tests.helpers.torch_tags import depending_on_data, waited_for


def _write_where_positive(x: torch.Tensor) -> None:
    x[x > 0] = 2.0


def _ctc_loss(x: torch.Tensor) -> torch.Tensor:
    labels, length = torch.ones(1, 2, dtype=torch.long).to(x.device), torch.tensor([2]).to(x.device)
    return functional.ctc_loss(x.expand(5, 1, 4), labels, length + 3, length)


def _grouped_mm(x: torch.Tensor) -> torch.Tensor:
    ends = torch.tensor([2, 4], dtype=torch.int32).to(x.device)
    experts = x.bfloat16().repeat(2).repeat(2, 8, 1)  # strides have to be multiples of 16 bytes
    return torch._grouped_mm(experts[0, :4], experts, offs=ends)


WAITS: dict[str, tuple[str, Callable[[torch.Tensor], Any]]] = {
    "_ctc_loss": ("copy_to_host", _ctc_loss),
    "_grouped_mm": ("copy_to_host", _grouped_mm),
    "_local_scalar_dense": ("aten::_local_scalar_dense", lambda x: float(x.sum())),
    "_unique": ("aten::_unique", torch._unique),
    "_unique2": ("aten::_unique2", torch.unique),
    "allclose": ("aten::_local_scalar_dense", lambda x: torch.allclose(x, x)),
    "argwhere": ("aten::nonzero", torch.argwhere),
    "bincount": ("aten::bincount", lambda x: torch.bincount(x.long())),
    "equal": ("aten::equal", lambda x: torch.equal(x, x)),
    "index": ("aten::index", lambda x: x[x > 0]),
    "item": ("aten::_local_scalar_dense", lambda x: x.sum().item()),
    "linalg_lstsq": ("aten::linalg_lstsq", lambda x: torch.linalg.lstsq(x.diag(), x[:, None])),
    "masked_select": ("aten::masked_select", lambda x: x.masked_select(x > 0)),
    "nonzero": ("aten::nonzero", torch.nonzero),
    "one_hot": ("aten::_local_scalar_dense", lambda x: functional.one_hot(x.long())),
    "repeat_interleave": ("aten::repeat_interleave", lambda x: x.repeat_interleave(x.long())),
    "unique_consecutive": ("aten::unique_consecutive", torch.unique_consecutive),
    "unique_dim": ("aten::unique_dim", lambda x: torch.unique(x[:, None], dim=0)),
    "unique_dim_consecutive": (
        "aten::unique_dim_consecutive",
        lambda x: torch.ops.aten.unique_dim_consecutive(x[:, None], 0),
    ),
    "cpu": ("copy_to_host", lambda x: x.cpu()),
    "if": ("aten::_local_scalar_dense", lambda x: bool(x.any())),
    "index_put_": ("aten::_index_put_impl_", _write_where_positive),
    "synchronize": ("synchronize", lambda x: torch.accelerator.synchronize()),
    "tolist": ("copy_to_host", lambda x: x.tolist()),
}
"""What ends the graph and is counted, and how a user comes to it; by operator, where it is one."""


@pytest.mark.usefixtures("lazy")
@pytest.mark.parametrize("name", WAITS)
def test_what_the_host_waits_for_ends_the_graph(name: str) -> None:
    reason, wait = WAITS[name]
    inputs = torch.ones(4, device="hpu")
    _hpu_sim.reset_counters()
    _hpu_sim.reset_graph_cache()
    inputs + 1
    wait(inputs)
    stats = _hpu_sim.graph_stats()
    assert [ended_by for ended_by, _, _ in _hpu_sim.compilations()][:1] == [reason]
    syncs = _hpu_sim.host_syncs()
    assert sum(syncs.values()) == stats["num_breaks"]
    assert {reason} <= syncs.keys() <= {reason, f"aten::{name}"}  # some copy and wait


def test_what_is_waited_for_is_what_torch_tags() -> None:
    """An index waits for a mask alone, which the tag does not say; three more have no tag."""
    waiting = {name.partition(".")[0] for name in _hpu_sim.waiting_operators()}
    assert len(waiting) > 20
    assert waiting == waited_for()


def test_every_waiting_operator_has_a_case_above() -> None:
    assert {
        name.removeprefix("aten::").partition(".")[0] for name in depending_on_data()
    } <= WAITS.keys()


def test_an_index_without_a_mask_waits_for_nothing() -> None:
    x = torch.arange(4.0, device="hpu")
    _hpu_sim.reset_counters()
    x[torch.tensor([0, 2], device="hpu")]
    x[torch.tensor([1], device="hpu")] = torch.ones(1, device="hpu")
    x.index_select(0, torch.tensor([1], device="hpu"))
    assert _hpu_sim.host_syncs() == {}
