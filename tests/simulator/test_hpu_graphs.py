"""HPUGraph: what a captured graph runs again, what it keeps, and what cannot be captured."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import _hpu_sim
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.helpers.forked import fork_python

hpu: Any = torch.hpu

pytestmark = pytest.mark.usefixtures("lazy")


def _capture(function: Callable[[], Any], *, dry_run: bool = False) -> tuple[Any, Any]:
    captured = hpu.HPUGraph()
    captured.capture_begin(dry_run)
    try:
        result = function()
        captured.capture_end()
    except RuntimeError:
        captured.reset()
        raise
    return captured, result


def _on_card(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to("hpu")


def _in_use() -> int:
    gc.collect()
    return hpu.memory_allocated()


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "reshaped": lambda x: (x.t().reshape(24) + x.reshape(24)).contiguous() @ x.t().reshape(24),
    "views": lambda x: (x.t().reshape(-1)[2:8].view(2, 3) * 2, x.expand(2, 4, 6).sum(0)),
    "lists": lambda x: torch.cat([part.exp() for part in x.split([1, 3])] + [x], 0),
    "in_place": lambda x: x.exp().mul_(2).add_(x).relu_(),
    "in_place_on_a_whole_view": lambda x: x.exp().view(-1).add_(1),
    "out": lambda x: torch.mul(x, 3, out=torch.empty(0, device="hpu")),
    "out_of_its_shape": lambda x: torch.add(x, x, out=torch.empty_like(x)),
    "transposed_in_place": lambda x: x.exp().t_() @ x,
    "squeezed_in_place": lambda x: (x.exp().unsqueeze_(0) * x).squeeze_(0),
    "resized": lambda x: torch.empty(2, device="hpu").resize_(4, 6).copy_(x) + 1,
    "data": lambda x: x.exp().data + x.sin().detach(),
    "scatter": lambda x: x.scatter(1, torch.zeros(4, 1, dtype=torch.long, device="hpu"), 7.0),
    "masked": lambda x: torch.where(x > 0, x, x.new_zeros(())).masked_fill(x < -1, -1.0),
    "mask_written": lambda x: _masked_write(x.exp(), x),
    "gathered": lambda x: x[torch.arange(3, device="hpu"), None, 2],
    "bf16": lambda x: (x.bfloat16() @ x.t().bfloat16()).float(),
    "custom_operator": lambda x: torch.ops.hpu.rms_norm(x, torch.ones(6, device="hpu"), 1e-5)[0],
    "number_of_the_host": lambda x: x * torch.tensor(3.0),
    "attention": lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    "two_results": lambda x: torch.topk(x, 2),
    "aliased_results": lambda x: (lambda y: (y, y[1:3], y.view(-1)))(x + 1),
    "complex": lambda x: torch.fft.rfft(x).abs(),
    "convolution": lambda x: functional.conv1d(x[None], x.new_ones(3, 4, 2), padding=1),
}


def _masked_write(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    x[like > 0] = 5.0
    return x


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_replay_computes_what_the_python_would(name: str, mode: Callable[[], Any]) -> None:
    with mode():
        _check_replays(PROGRAMS[name], _on_card(4, 6))


def _check_replays(program: Callable[[torch.Tensor], Any], x: torch.Tensor) -> None:
    captured, results = _capture(lambda: program(x))
    for _ in range(3):
        x.copy_(torch.randn(4, 6))
        captured.replay()
        expected = program(x)
        found = hpu.graphs.extract_tensors(results)
        wanted = hpu.graphs.extract_tensors(expected)
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_a_block_that_raises_leaves_no_graph() -> None:
    captured, x = hpu.HPUGraph(), torch.ones(2, device="hpu")

    def add_and_fail() -> None:
        with hpu.graph(captured):
            x.add_(1)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        add_and_fail()
    assert not hpu.graphs.is_current_stream_capturing()
    captured.replay()
    assert x.tolist() == [2.0, 2.0]


@torch.no_grad()
def test_results_are_the_same_memory_at_every_replay() -> None:
    x = _on_card(4)
    captured, result = _capture(lambda: x + 1)
    address = result.data_ptr()
    x.zero_()
    captured.replay()
    assert result.data_ptr() == address
    assert result.tolist() == [1.0] * 4


@torch.no_grad()
def test_memory_that_was_there_before_is_written_at_every_replay() -> None:
    total, x = torch.zeros(3, device="hpu"), torch.ones(3, device="hpu")
    captured, _ = _capture(lambda: total.add_(x))
    captured.replay()
    captured.replay()
    assert total.tolist() == [3.0] * 3


@torch.no_grad()
def test_batch_norm_updates_its_statistics_at_every_replay() -> None:
    ours, theirs = nn.BatchNorm1d(3).to("hpu"), nn.BatchNorm1d(3).to("hpu")
    x = _on_card(8, 3)
    captured, result = _capture(lambda: ours(x))
    theirs(x)
    for _ in range(3):
        x.copy_(torch.randn(8, 3))
        captured.replay()
        assert torch.equal(result, theirs(x))
    assert torch.equal(ours.running_var, theirs.running_var)
    assert ours.num_batches_tracked.item() == 4


@torch.no_grad()
def test_scalars_are_those_of_the_capture() -> None:
    x, factor = torch.ones(2, device="hpu"), 2.0
    captured, result = _capture(lambda: x * factor)
    factor = 5.0
    captured.replay()
    assert result.tolist() == [2.0, 2.0]


@torch.no_grad()
def test_parameters_are_the_memory_of_the_capture() -> None:
    layer, x = nn.Linear(2, 2, bias=False).to("hpu"), torch.ones(1, 2, device="hpu")
    captured, result = _capture(lambda: layer(x))
    before = result.clone()
    layer.weight.data = torch.zeros(2, 2, device="hpu")
    captured.replay()
    assert torch.equal(result, before)


@torch.no_grad()
def test_random_operators_draw_anew_at_each_replay() -> None:
    x = torch.ones(64, device="hpu")
    captured, result = _capture(lambda: functional.dropout(x, 0.5) + torch.rand_like(x))
    torch.manual_seed(3)
    replayed = []
    for _ in range(2):
        captured.replay()
        replayed.append(result.clone())
    torch.manual_seed(3)
    drawn = [functional.dropout(x, 0.5) + torch.rand_like(x) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(replayed, drawn, strict=True))
    assert not torch.equal(*drawn)


@torch.no_grad()
def test_autocast_of_the_capture_is_that_of_the_replay() -> None:
    layer, x = nn.Linear(4, 4).to("hpu"), _on_card(2, 4)
    captured = hpu.HPUGraph()
    with hpu.graph(captured), torch.autocast("hpu", dtype=torch.bfloat16):
        result = layer(x)
    assert result.dtype == torch.bfloat16
    expected = result.clone()
    result.zero_()
    captured.replay()
    assert torch.equal(result, expected)


def test_a_dry_run_changes_nothing_and_its_results_are_no_numbers() -> None:
    total, x = torch.zeros(3, device="hpu"), torch.ones(3, device="hpu")
    state = hpu.get_rng_state()
    captured, result = _capture(lambda: total.add_(x) + torch.rand_like(x), dry_run=True)
    assert total.tolist() == [0.0] * 3
    assert torch.equal(hpu.get_rng_state(), state)
    assert result.isnan().all()
    captured.replay()
    assert total.tolist() == [1.0] * 3
    assert (result >= 1).all()


@pytest.mark.slow
@torch.no_grad()
def test_a_graph_keeps_its_results_and_none_of_what_is_between() -> None:
    x = torch.ones(256, device="hpu")
    before = _in_use()
    captured, result = _capture(lambda: x.exp().sin().cos() + 1)
    assert _in_use() == before + x.nbytes
    del result
    captured.replay()
    assert _in_use() == before + x.nbytes
    captured.reset()
    assert _in_use() == before


@torch.no_grad()
def test_a_replay_needs_no_more_memory_than_the_python() -> None:
    x = torch.ones(1024, device="hpu")
    captured, _ = _capture(lambda: _chain(x))
    hpu.reset_peak_memory_stats()
    before = hpu.memory_allocated()
    captured.replay()
    assert hpu.max_memory_allocated() - before <= 2 * x.nbytes


def _chain(x: torch.Tensor) -> torch.Tensor:
    for _ in range(20):
        x = x + 1
    return x


@torch.no_grad()
def test_a_capture_compiles_and_a_replay_finds_the_graph() -> None:
    x = torch.ones(4, device="hpu")
    _hpu_sim.reset_graph_cache()
    captured, _ = _capture(lambda: x.exp() + 1)
    assert [_hpu_sim.graph_stats()[name] for name in STATS] == [1, 0, 0, 2]
    for _ in range(3):
        captured.replay()
    assert [_hpu_sim.graph_stats()[name] for name in STATS] == [1, 3, 0, 2]


STATS = ("num_compilations", "num_cache_hits", "pending_ops", "num_ops")


@torch.no_grad()
def test_each_mark_step_in_a_capture_makes_another_graph_of_a_replay() -> None:
    x = torch.ones(4, device="hpu")

    def two_steps() -> torch.Tensor:
        y = x.exp()
        _hpu_sim.mark_step()
        return y.sin() + 1

    _hpu_sim.reset_graph_cache()
    captured, _ = _capture(two_steps)
    captured.replay()
    assert [_hpu_sim.graph_stats()[name] for name in STATS[:2]] == [2, 2]


@pytest.mark.slow
@torch.no_grad()
def test_marked_inputs_are_read_where_they_are_and_not_kept() -> None:
    before = _in_use()
    captured, x = hpu.HPUGraph(), torch.ones(64, device="hpu")
    unused = torch.ones(64, device="hpu")
    with hpu.graph(captured):
        captured.mark_user_inputs([unused, x])
        result = x[1:] * x.view(8, 8).sum()
    assert captured.get_user_input_match_indices() == {1}
    del x, unused
    assert _in_use() == before + 256  # of 252 bytes, in steps of 128
    captured.replay_with_inputs([torch.ones(64).to("hpu"), torch.full((64,), 2.0, device="hpu")])
    assert result.tolist() == [256.0] * 63


@torch.no_grad()
def test_replay_v2_takes_other_tensors_in_place_of_those_of_the_capture() -> None:
    x, y = torch.ones(2, device="hpu"), torch.ones(2, device="hpu")
    captured, result = _capture(lambda: x - y)
    captured.replayV2([y], [torch.full((2,), 5.0, device="hpu")])
    assert result.tolist() == [-4.0, -4.0]
    captured.replay()
    assert result.tolist() == [0.0, 0.0]


REFUSED: dict[str, tuple[str, Callable[[torch.Tensor], Any]]] = {
    "item": ("_local_scalar_dense is not supported", lambda x: x.sum().item()),
    "if": ("_local_scalar_dense is not supported", lambda x: 1 if x.sum() > 0 else 0),
    "cpu": ("_to_copy to the CPU is not supported", lambda x: x.cpu()),
    "copy_to_cpu": ("copy_ to the CPU is not supported", lambda x: torch.empty(4).copy_(x[0, :4])),
    "nonzero": ("nonzero is not supported", lambda x: x.nonzero()),
    "unique": ("_unique2 is not supported", lambda x: x.unique()),
    "equal": ("equal is not supported", lambda x: torch.equal(x, x)),
    "mask": ("index with a mask is not supported", lambda x: x[x > 0]),
    "view": (r"add_ updates a view in place, \(6,\) of .* 24 ", lambda x: x.exp()[0].add_(1)),
    "slice": ("copy_ updates a view in place", lambda x: x.__setitem__(slice(0, 2), 1.0)),
    "set": ("set_ is not supported", lambda x: torch.empty(0, device="hpu").set_(x)),
}


@pytest.mark.parametrize("name", REFUSED)
@torch.no_grad()
def test_what_a_card_cannot_capture_is_refused(name: str) -> None:
    message, program = REFUSED[name]
    x = _on_card(4, 6)
    with pytest.raises(RuntimeError, match=message):
        _capture(lambda: program(x))
    captured, result = _capture(lambda: x + 1)  # the next capture is as good as ever
    captured.replay()
    assert torch.equal(result, x + 1)


def test_captures_do_not_nest() -> None:
    other, _ = _capture(lambda: torch.ones(2, device="hpu"))
    with pytest.raises(RuntimeError, match="in progress already"):
        _capture(lambda: _capture(lambda: None))
    with pytest.raises(RuntimeError, match="so no graph can be replayed"):
        _capture(other.replay)


def test_a_capture_ends_on_its_stream() -> None:
    captured = hpu.HPUGraph()
    with hpu.stream(hpu.Stream()):
        captured.capture_begin()
    with pytest.raises(RuntimeError, match="began on stream"):
        captured.capture_end()
    captured.reset()


def _seen_by(capture: Callable[[Callable[[], Any]], Any]) -> list[bool]:
    """What a function that is captured is told of that, and what holds after it."""
    seen: list[bool] = []

    def told() -> torch.Tensor:
        seen.append(hpu.graphs.is_current_stream_capturing())
        return torch.ones(2, device="hpu") + 1

    capture(told)
    told()
    return seen


def _within_graph(function: Callable[[], Any], *stream: Any) -> None:
    with hpu.graph(hpu.HPUGraph(), *stream):
        function()


@pytest.mark.slow
@torch.no_grad()
def test_a_capture_is_seen_where_the_current_streams_object_was_marked() -> None:
    """`hpu.graph` marks the object that it was given, and the vendor asks the current one."""
    assert _seen_by(_within_graph) == [True, False]
    assert _seen_by(lambda f: _within_graph(f, hpu.Stream())) == [True, False]
    assert _seen_by(lambda f: _within_graph(f, hpu.current_stream())) == [True, False]
    assert _seen_by(lambda f: _within_graph(f, hpu.default_stream())) == [False, False]
    assert _seen_by(_capture) == [False, False]
    assert _seen_by(lambda f: hpu.wrap_in_hpu_graph_func(f)()) == [False, False]


def test_misuse_of_marked_inputs_is_refused() -> None:
    captured, x = hpu.HPUGraph(), torch.ones(4, device="hpu")
    with pytest.raises(RuntimeError, match="is not being captured"):
        captured.mark_user_inputs([x])
    with hpu.graph(captured):
        captured.mark_user_inputs([x])
        x + 1
    with pytest.raises(RuntimeError, match=r"shapes \[\(4,\)\], and is replayed with \[\(3,\)\]"):
        captured.replayV3([x[:3]])
    with pytest.raises(RuntimeError, match="takes 1 marked inputs"):
        captured.replay()


def test_eager_mode_has_no_graphs() -> None:
    _hpu_sim.set_lazy(False)
    with pytest.raises(RuntimeError, match="HPUGraph is available in lazy mode only"):
        hpu.HPUGraph()
    with pytest.raises(RuntimeError, match="graph is available in lazy mode only"):
        hpu.graph(None)


@pytest.mark.parametrize(("release", "mode", "has"), [("1.20", "0", False), ("1.20", "1", True)])
def test_before_1_22_eager_mode_does_not_name_them(release: str, mode: str, has: bool) -> None:
    program = "import torch, habana_frameworks.torch as h; print(hasattr(h.hpu, 'HPUGraph'))"
    env = {"LIGHTNING_GAUDI_SIMULATE_RELEASE": release, "PT_HPU_LAZY_MODE": mode}
    assert fork_python(program, env=env).stdout.strip() == str(has)
