"""torch.compile with the vendor's backend."""

from __future__ import annotations

import re

import pytest
import torch
from habana_frameworks.torch.dynamo.compile_backend import backends
from habana_frameworks.torch.hpex.kernels import FusedSDPA
from habana_frameworks.torch.hpex.normalization import FusedRMSNorm
from torch.nn import functional

from tests.helpers.forked import fork_python
from tests.helpers.process import run_python

pytestmark = pytest.mark.filterwarnings("default")  # the compiler's own deprecations


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def _train(model, x):
    model.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss.item(), [p.grad.cpu() for p in model.parameters()]


@pytest.mark.slow
def test_a_compiled_model_trains_as_the_eager_one():
    torch.manual_seed(0)
    layers = (torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    model = torch.nn.Sequential(*layers).to("hpu")
    x = torch.randn(5, 8, device="hpu")
    loss, gradients = _train(model, x)
    compiled = torch.compile(model, backend="hpu_backend")
    compiled_loss, compiled_gradients = _train(compiled, x)
    assert compiled_loss == pytest.approx(loss, rel=1e-6)
    for mine, other in zip(compiled_gradients, gradients, strict=True):
        torch.testing.assert_close(mine, other)


_POINTWISE = {
    "add": lambda x: x + x,
    "gelu": functional.gelu,
    "mul": lambda x: x * 2.5,
    "neg": torch.neg,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "where": lambda x: torch.where(x > 0, x, 0),
}


@pytest.mark.slow_but(
    "gelu-dtype3-dynamic",
    "gelu-dtype3-static",
    "silu-dtype3-dynamic",
    "silu-dtype3-static",
    "mul-dtype0-static",
    "mul-dtype2-static",
    "sigmoid-dtype0-static",
    "silu-dtype2-static",
)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32])
@pytest.mark.parametrize("name", _POINTWISE)
def test_views_of_what_was_computed_from_a_transposed_tensor_are_predicted(name, dtype, dynamic):
    """Heads are moved behind the sequence, something is computed, and they are moved back."""
    if dtype == torch.int32 and name in ("gelu", "silu"):
        pytest.skip("the operator takes floats alone")

    def f(x):
        heads = _POINTWISE[name](x.transpose(1, 2))
        return heads.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1) + 1

    for length in (5, 6):
        x = (torch.randn(2, length, 3, 4) * 4).to(dtype).to("hpu")
        expected, compiled = f(x), torch.compile(f, backend="hpu_backend", dynamic=dynamic)(x)
        assert torch.equal(compiled.cpu(), expected.cpu())
        assert compiled.stride() == expected.stride()


def test_compilations_are_counted():
    def f(x):
        return x.sin() + 1

    compiled = torch.compile(f, backend="hpu_backend", dynamic=False)
    with torch.hpu.metric_localcontext("graph_compilation") as metric:
        for size in (3, 3, 4):
            compiled(torch.ones(size, device="hpu"))
    assert dict(metric.stats())["TotalNumber"] == 2


def test_a_compiled_graph_is_one_launch_forward_and_one_backward():
    layers = (torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Dropout(0.1))
    model = torch.nn.Sequential(*layers).to("hpu")
    x, upstream = torch.ones(4, 8, device="hpu"), torch.ones(4, 8, device="hpu")
    compiled = torch.compile(model, backend="hpu_backend")
    compiled(x).backward(upstream)
    model.zero_grad()
    counts = []
    for part in (model, compiled):
        with torch.hpu.metric_localcontext("launch") as metric:
            result = part(x)
            counts.append(dict(metric.stats())["TotalNumber"])
            result.backward(upstream)
        counts.append(dict(metric.stats())["TotalNumber"] - counts[-1])
        model.zero_grad()
    assert min(counts[:2]) > 4
    assert counts[2:] == [1, 1]


def test_a_recompilation_tells_the_shape_that_caused_it():
    def f(x):
        return x.tan() * 3 - x

    compiled = torch.compile(f, backend="hpu_backend", dynamic=False)
    with torch.hpu.metric_localcontext("recompilation") as metric:
        for size in (3, 3, 4, 6):
            compiled(torch.ones(2, size, device="hpu"))
        torch.compile(torch.erf, backend="hpu_backend")(torch.ones(2, 9, device="hpu"))
    causes = ["input 0: [2, 4] was [2, 3]", "input 0: [2, 6] was [2, 4]"]
    assert metric.stats() == [("TotalNumber", 2), ("Causes", causes)]


def test_what_a_reset_forgot_is_not_compiled_again():
    def f(x):
        return x.tan() / 5 - x

    with torch.hpu.metric_localcontext("recompilation") as metric:
        for size in (3, 4):
            torch.compile(f, backend="hpu_backend")(torch.ones(2, size, device="hpu"))
            torch.compiler.reset()
    assert metric.stats() == [("TotalNumber", 0), ("Causes", [])]


def test_a_graph_for_sizes_that_vary_says_which():
    compiled = torch.compile(lambda x: x.tan() / 3 + x, backend="hpu_backend")
    with torch.hpu.metric_localcontext("recompilation") as metric:
        for size in (3, 4, 5, 6):
            compiled(torch.ones(size, 2, device="hpu"))
    stats = dict(metric.stats())
    assert stats["TotalNumber"] == 1
    assert re.fullmatch(r"input 0: \[s\d+, 2\] was \[3, 2\]", stats["Causes"][0])


def test_fused_operators_compile():
    torch.manual_seed(0)
    q = torch.randn(1, 2, 4, 8, device="hpu", requires_grad=True)
    gamma = torch.ones(8, device="hpu", requires_grad=True)

    def f(q, gamma):
        return FusedSDPA.apply(FusedRMSNorm.apply(q, gamma, 1e-6), q, q, None, 0.0, True).sum()

    f(q, gamma).backward()
    expected = q.grad.clone(), gamma.grad.clone()
    q.grad = gamma.grad = None
    torch.compile(f, backend="hpu_backend")(q, gamma).backward()
    torch.testing.assert_close((q.grad, gamma.grad), expected)


def test_the_compiler_knows_the_device():
    from torch._dynamo.device_interface import get_interface_for_device

    interface = get_interface_for_device("hpu")
    assert interface.is_available()
    assert interface.current_device() == interface.Worker.current_device() == 0
    assert interface.exchange_device(0) == interface.maybe_exchange_device(0) == 0
    assert interface.is_bf16_supported()
    assert not interface.is_triton_capable()
    assert interface.get_raw_stream(0) == torch.hpu.current_stream().stream_id
    assert get_interface_for_device("hpu:0") is interface


def test_lazy_mode_refuses_to_compile(monkeypatch):
    monkeypatch.setattr(backends, "is_lazy", lambda: True)
    message = r'torch.compile\(backend="hpu_backend"\) needs eager mode'
    with pytest.raises(Exception, match=message):
        torch.compile(lambda x: x + 1, backend="hpu_backend")(torch.ones(2, device="hpu"))


@pytest.mark.slow
def test_a_process_in_lazy_mode_refuses_to_compile():
    fork_python(
        """
        import torch
        try:
            torch.compile(lambda x: x + 1, backend="hpu_backend")(torch.ones(2, device="hpu"))
        except Exception as error:
            assert 'torch.compile(backend="hpu_backend") needs eager mode' in str(error), error
        else:
            raise AssertionError("compiled in lazy mode")
        """,
        env={"PT_HPU_LAZY_MODE": "1"},
    )


@pytest.mark.slow
def test_importing_the_package_leaves_the_compiler_alone():
    source = """
        import sys, torch
        import habana_frameworks.torch
        print("torch._dynamo.backends.registry" in sys.modules)
        """
    assert run_python(source).stdout == "False\n"  # a forked process has the compiler already


def test_the_compiler_knows_the_backend_once_it_is_imported():
    import torch._dynamo

    assert "hpu_backend" in torch._dynamo.list_backends()


@pytest.mark.slow
def test_backward_passes_are_compiled_when_asked_for():
    out = fork_python(
        """
        import torch
        from habana_frameworks.torch.dynamo.compile_backend.experimental import (
            enable_compiled_autograd,
        )
        enable_compiled_autograd()
        model = torch.compile(torch.nn.Linear(3, 2).to("hpu"), backend="hpu_backend")
        x = torch.rand(4, 3, device="hpu")
        model(x).sum().backward()
        assert torch.equal(model.weight.grad.cpu(), x.sum(0).cpu().expand(2, 3))
        print(dict(torch.hpu.metric_global("graph_compilation").stats())["TotalNumber"])
        """
    ).stdout
    assert out.split() == ["2"]


@pytest.fixture
def programs(monkeypatch):
    """Whether each graph that was compiled has become a program of the extension."""
    found = []

    def compile_program(graph_module):
        program = original(graph_module)
        found.append(program is not None)
        return program

    original = backends.compile_program
    monkeypatch.setattr(backends, "compile_program", compile_program)
    return found


def _lists_and_several_results(x, index):
    parts = torch.split(torch.cat([x, x * 2, x.exp()], dim=1), 4, dim=1)
    values, places = torch.topk(parts[1], 2, dim=1)
    picked = x[:, index] + x[index[:2], index[2:]].sum()
    variance, mean = torch.var_mean(picked, dim=0)
    return torch.stack([parts[0], parts[-1]]), values, places, variance / mean, x


def test_a_graph_with_lists_and_several_results_computes_as_in_eager_mode(programs):
    torch.manual_seed(0)
    x, index = torch.randn(4, 4, device="hpu"), torch.tensor([0, 1, 3, 2]).to("hpu")
    expected = _lists_and_several_results(x, index)
    found = torch.compile(_lists_and_several_results, backend="hpu_backend")(x, index)
    assert found[-1] is x
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other.cpu(), rtol=0, atol=0)
    assert programs == [True]


def test_a_graph_updates_its_inputs_in_place(programs):
    cache, row = torch.zeros(3, 2, device="hpu"), torch.ones(1, 2, device="hpu")
    place = torch.tensor([1]).to("hpu")

    def step(cache, place, row):
        cache.index_copy_(0, place, row)
        place.add_(1)
        return cache.sum()

    compiled = torch.compile(step, backend="hpu_backend")
    with torch.no_grad():
        sums = [compiled(cache, place, row).item() for _ in range(2)]
    assert sums == [2.0, 4.0]
    assert cache.tolist() == [[0, 0], [1, 1], [1, 1]]
    assert place.tolist() == [3]
    assert programs == [True]


def test_a_graph_for_sizes_that_vary_runs_as_python(programs):
    def double(x):
        return x.reshape(-1, x.shape[0]) * 2

    compiled = torch.compile(double, backend="hpu_backend", dynamic=True)
    for rows in (2, 3):
        x = torch.randn(rows, 6, device="hpu")
        torch.testing.assert_close(compiled(x).cpu(), double(x).cpu(), rtol=0, atol=0)
    assert programs == [False]


def test_values_of_a_graph_are_freed_when_nobody_reads_them_any_more(programs):
    def chain(x):
        for _ in range(8):
            x = x + 1
        return x

    x = torch.zeros(1 << 20, device="hpu")
    compiled = torch.compile(chain, backend="hpu_backend")
    compiled(x)
    before = torch.hpu.memory_allocated()
    torch.hpu.reset_peak_memory_stats()
    result = compiled(x)
    assert torch.hpu.max_memory_allocated() - before <= 2 * result.nbytes
    assert result.max().item() == 8
    assert programs == [True]


def test_an_error_in_a_graph_is_raised_and_the_launch_ends(programs):
    def look_up(table, index):
        return torch.nn.functional.embedding(index, table)

    table, index = torch.randn(4, 2, device="hpu"), torch.tensor([9]).to("hpu")
    compiled = torch.compile(look_up, backend="hpu_backend")
    with pytest.raises(IndexError, match="index out of range"):
        compiled(table, index)
    with torch.hpu.metric_localcontext("launch") as metric:
        _ = table + table
    assert dict(metric.stats())["TotalNumber"] == 1
    assert programs == [True]


def test_streams_end_a_compiled_graph() -> None:
    side = torch.hpu.Stream()

    def f(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        torch.hpu.current_stream().wait_stream(side)
        with torch.hpu.stream(side):
            x = x * 2
        torch.hpu.set_stream(torch.hpu.default_stream())
        return x - 3

    compiled = torch.compile(f, backend="hpu_backend")
    x = torch.ones(2, 3, device="hpu")
    assert torch.equal(compiled(x).cpu(), f(x).cpu())
