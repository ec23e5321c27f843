"""What the vendor counts, under the names and keys that our callbacks read."""

from __future__ import annotations

import itertools

import pytest
import torch

from lightning_gaudi._core import vendor
from tests.helpers import vendor_names


@pytest.mark.parametrize("name", vendor_names.METRICS)
def test_metric_has_its_keys(name: str) -> None:
    """More keys may be there: the environment can ask for details."""
    stats = vendor.metric(name)
    assert stats is not None
    assert set(vendor_names.METRICS[name]) <= set(stats)
    assert stats["TotalNumber"] >= 0


def test_unknown_metric_is_none() -> None:
    assert vendor.metric("no_such_metric_of_the_vendors") is None


def _num_compilations() -> int:
    stats = vendor.metric("graph_compilation")
    assert stats is not None
    return int(stats["TotalNumber"])


def _step(length: int) -> None:
    """A graph that depends on `length`, cut at its end."""
    a = torch.ones(3, length).to("hpu")
    (a * a + a).sum(0).cpu()
    vendor.mark_step()


def test_a_new_shape_is_compiled_once() -> None:
    """In lazy mode, whose recipes the metric counts."""
    if not vendor.is_lazy():
        pytest.skip("needs lazy mode: PT_HPU_LAZY_MODE=1 (`make test-gaudi` runs both modes)")
    counts = [_num_compilations()]
    for length in (501, 501, 501, 503, 503):
        _step(length)
        counts.append(_num_compilations())
    grown = [after > before for before, after in itertools.pairwise(counts)]
    assert grown == [True, False, False, True, False]


def test_compilation_time_grows_with_their_number() -> None:
    if not vendor.is_lazy():
        pytest.skip("needs lazy mode: PT_HPU_LAZY_MODE=1 (`make test-gaudi` runs both modes)")
    _step(507)
    before = vendor.metric("graph_compilation")
    _step(509)
    after = vendor.metric("graph_compilation")
    assert before is not None
    assert after is not None
    if before["TotalNumber"] and not before["TotalTime"]:
        pytest.skip("needs a card that compiles: this one counts graphs, and no time for them")
    assert after["TotalTime"] > before["TotalTime"]


def test_average_time_is_the_total_by_the_number() -> None:
    _step(511)
    stats = vendor.metric("graph_compilation")
    assert stats is not None
    expected = stats["TotalTime"] / max(1, stats["TotalNumber"])
    assert stats["AvgTime"] == pytest.approx(expected)


def test_what_a_model_needs_runs_on_the_card() -> None:
    """Operations of every transformer: none of them goes back to the CPU."""
    before = vendor.metric("cpu_fallback")
    x = torch.rand(2, 8, 16).to("hpu").requires_grad_()
    y = torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, (16,)))
    torch.nn.functional.cross_entropy(y.flatten(0, 1), torch.arange(16).to("hpu")).backward()
    vendor.mark_step()
    after = vendor.metric("cpu_fallback")
    assert before is not None
    assert after is not None
    assert after["FallbackOps"] == before["FallbackOps"]
