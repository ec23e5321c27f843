"""What a lazy device would compile: one recipe for each graph that differs, then cache hits."""

from __future__ import annotations

import threading
from typing import Any

import _hpu_sim
import pytest
import torch
from torch import nn

NUM_STEPS = 10


def _stats(*names: str) -> list[int]:
    stats: dict[str, Any] = _hpu_sim.graph_stats()
    return [stats[name] for name in names]


def _train(lengths: list[int], *, reads_loss: bool = False, learning_rates: bool = False) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 1)).to("hpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.randn(length, 8).to("hpu") for length in lengths]
    _hpu_sim.reset_graph_cache()
    for step, batch in enumerate(batches):
        if learning_rates:
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        loss = model(batch).square().mean()
        loss.backward()
        _hpu_sim.mark_step()
        if reads_loss:
            loss.item()
        optimizer.step()
        optimizer.zero_grad()
        _hpu_sim.mark_step()


@pytest.mark.usefixtures("lazy")
def test_equal_steps_compile_two_graphs_once() -> None:
    _train([4] * NUM_STEPS)
    names = ("num_compilations", "num_cache_hits", "num_mark_steps", "num_breaks")
    assert _stats(*names) == [2, 2 * NUM_STEPS - 2, 2 * NUM_STEPS, 0]
    assert _stats("pending_ops", "num_empty_steps") == [0, 0]


@pytest.mark.usefixtures("lazy")
def test_every_new_length_compiles_its_forward_and_backward() -> None:
    _train(list(range(4, 4 + NUM_STEPS)))
    assert _stats("num_compilations") == [NUM_STEPS + 1]


@pytest.mark.usefixtures("lazy")
def test_three_lengths_compile_four_graphs() -> None:
    _train([4, 8, 16] * 4)
    assert _stats("num_compilations") == [4]


@pytest.mark.usefixtures("lazy")
def test_learning_rate_is_an_input_of_the_graph() -> None:
    _train([4] * NUM_STEPS, learning_rates=True)
    assert _stats("num_compilations") == [2]


@pytest.mark.usefixtures("lazy")
def test_reading_the_loss_breaks_the_graph_every_step() -> None:
    _hpu_sim.reset_counters()
    _train([4] * NUM_STEPS, reads_loss=True)
    assert _stats("num_breaks") == [NUM_STEPS]
    assert _hpu_sim.host_syncs()["aten::_local_scalar_dense"] == NUM_STEPS


@pytest.mark.usefixtures("lazy")
def test_log_tells_what_ended_each_new_graph_and_its_size() -> None:
    inputs = torch.ones(4, device="hpu")
    _hpu_sim.reset_graph_cache()
    inputs.exp().sin()
    _hpu_sim.mark_step()
    inputs.exp().sum().item()
    log = [("mark_step", 2, ""), ("aten::_local_scalar_dense", 2, "")]
    assert _hpu_sim.compilations() == log
    assert _hpu_sim.compilations(1) == log[1:]
    assert _hpu_sim.compilations(2) == _hpu_sim.compilations(99) == []
    assert _stats("num_ops") == [4]


def _compile_for(*shapes: tuple[int, int]) -> list[str]:
    """The causes of what is compiled for inputs of these shapes, in this order."""
    weight = torch.ones(4, device="hpu")
    inputs = [torch.ones(shape, device="hpu") for shape in shapes]
    _hpu_sim.reset_graph_cache()
    for tensor in inputs:
        (tensor.exp() * weight).sum()
        _hpu_sim.mark_step()
    return [cause for _, _, cause in _hpu_sim.compilations()]


@pytest.mark.usefixtures("lazy")
def test_log_tells_the_shape_that_caused_a_recompilation() -> None:
    causes = ["", "input 0: [3, 4] was [2, 4]", "input 0: [5, 4] was [3, 4]"]
    assert _compile_for((2, 4), (2, 4), (3, 4), (2, 4), (5, 4)) == causes
    assert _stats("num_compilations", "num_recompilations", "num_cache_hits") == [3, 2, 2]


@pytest.mark.usefixtures("lazy")
def test_graph_of_other_operators_or_types_is_no_recompilation() -> None:
    inputs = torch.ones(4, device="hpu")
    _hpu_sim.reset_graph_cache()
    for graph in (torch.exp, torch.sin, lambda x: x.bfloat16().exp()):
        graph(inputs)
        _hpu_sim.mark_step()
    assert _stats("num_compilations", "num_recompilations") == [3, 0]


@pytest.mark.usefixtures("lazy")
def test_cause_names_three_inputs_and_counts_the_rest() -> None:
    lists = [[torch.ones(size, device="hpu") for _ in range(5)] for size in (2, 3)]
    _hpu_sim.reset_graph_cache()
    for tensors in lists:
        torch.stack(tensors)
        _hpu_sim.mark_step()
    inputs = "; ".join(f"input {index}: [3] was [2]" for index in range(3))
    assert _hpu_sim.compilations()[1][2] == f"{inputs}; and 2 more"


@pytest.mark.usefixtures("lazy")
def test_cause_says_if_shapes_are_not_what_differs() -> None:
    inputs = torch.ones(4, 4, device="hpu")
    _hpu_sim.reset_graph_cache()
    for dim in (0, 1):
        inputs.sum(dim)
        _hpu_sim.mark_step()
    (_, _, cause) = _hpu_sim.compilations()[1]
    assert cause == "other strides or arguments, inputs of the same shapes"


@pytest.mark.usefixtures("lazy")
def test_log_forgets_what_is_oldest() -> None:
    _hpu_sim.reset_graph_cache()
    for length in range(1, 4200):
        torch.zeros(length, device="hpu")
        _hpu_sim.mark_step()
    assert _stats("num_compilations") == [4199]
    assert len(_hpu_sim.compilations()) == len(_hpu_sim.compilations(100)) == 4096
    assert len(_hpu_sim.compilations(4198)) == 1


@pytest.mark.usefixtures("lazy")
def test_reading_a_finished_tensor_compiles_nothing() -> None:
    total = torch.ones(4, device="hpu").sum()
    _hpu_sim.mark_step()
    _hpu_sim.reset_graph_cache()
    total.item()
    total.cpu()
    assert _stats("num_compilations", "num_breaks") == [0, 2]


@pytest.mark.usefixtures("lazy")
def test_empty_step_is_counted_and_compiles_nothing() -> None:
    _hpu_sim.mark_step()
    assert _stats("num_mark_steps", "num_empty_steps", "num_compilations") == [1, 1, 0]


@pytest.mark.usefixtures("lazy")
@pytest.mark.parametrize(
    "other",
    [
        lambda x, y: x + x,
        lambda x, y: x - y,
        lambda x, y: x.t() + y,
        lambda x, y: x.bfloat16() + y,
        lambda x, y: x.view(16) + y.view(16),
        lambda x, y: (x + y, x + y)[0],
    ],
    ids=["identity", "operator", "strides", "dtype", "shape", "repeated"],
)
def test_graphs_that_differ_are_told_apart(other: Any) -> None:
    x, y = torch.ones(4, 4, device="hpu"), torch.ones(4, 4, device="hpu")
    _hpu_sim.reset_graph_cache()
    for graph in (lambda x, y: x + y, other):
        graph(x, y)
        _hpu_sim.mark_step()
    assert _stats("num_compilations", "num_cache_hits") == [2, 0]


@pytest.mark.usefixtures("lazy")
def test_graphs_that_differ_only_in_addresses_and_numbers_are_one() -> None:
    keep = []
    _hpu_sim.reset_graph_cache()
    for number in range(4):
        inputs = torch.ones(4, 4, device="hpu")
        keep.append(inputs.mul(number).add(inputs, alpha=number))
        _hpu_sim.mark_step()
    assert _stats("num_compilations", "num_cache_hits") == [1, 3]


@pytest.mark.usefixtures("lazy")
def test_threads_may_record_at_once() -> None:
    def work() -> None:
        inputs = torch.ones(4, device="hpu")
        for _ in range(10_000):
            inputs = inputs + 1

    _hpu_sim.reset_graph_cache()
    work()
    (num_ops,) = _stats("num_ops")
    assert num_ops > 10_000
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _stats("num_ops") == [5 * num_ops]


def test_eager_mode_tracks_nothing() -> None:
    assert not _hpu_sim.is_lazy()
    _hpu_sim.reset_graph_cache()
    torch.ones(4, device="hpu").exp().sum().item()
    _hpu_sim.mark_step()
    stats = _hpu_sim.graph_stats()
    assert not any(stats.values())


@pytest.mark.usefixtures("lazy")
def test_lazy_and_eager_compute_the_same() -> None:
    model = nn.Linear(4, 4).to("hpu")
    results = []
    for is_lazy in (False, True):
        _hpu_sim.set_lazy(is_lazy)
        inputs = torch.arange(8.0).view(2, 4).to("hpu")
        results.append(model(inputs).exp().sum().item())
        assert (_stats("num_breaks") == [1]) == is_lazy
    assert results[0] == results[1]


def test_transfers_count_copies_and_bytes_by_direction() -> None:
    _hpu_sim.reset_counters()
    on_card = torch.ones(256).to("hpu")
    on_card.clone()
    on_card.cpu()
    assert _hpu_sim.transfers() == {
        "host_to_device": 1,
        "host_to_device_bytes": 1024,
        "device_to_device": 1,
        "device_to_device_bytes": 1024,
        "device_to_host": 1,
        "device_to_host_bytes": 1024,
    }
    _hpu_sim.reset_counters()
    assert not any(_hpu_sim.transfers().values())
    assert _hpu_sim.host_syncs() == {}
