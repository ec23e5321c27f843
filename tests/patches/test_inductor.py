"""`torch.compile` without a backend."""

from __future__ import annotations

import types
import warnings

import pytest
import torch

from lightning_gaudi._core import mirror
from lightning_gaudi._patches import inductor as hpu_compile
from tests.helpers.forked import fork_python

pytestmark = pytest.mark.filterwarnings("default")  # the compiler's own deprecations


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def num_compiled():
    """The number of graphs that "hpu_backend" compiled in this test."""
    with torch.hpu.metric_localcontext("graph_compilation") as metric:
        yield lambda: dict(metric.stats())["TotalNumber"]


def _train(model, x):
    model.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


class _Doubler(torch.nn.Module):
    def forward(self, x):
        return 2 * x.exp()


def _patched(compile_fx):
    """What the patch makes of a `compile_fx`."""
    module = types.ModuleType("torch._inductor.compile_fx")
    module.compile_fx = compile_fx
    hpu_compile.patch_inductor(module, mirror.LIGHTNING)
    return module.compile_fx


def _mlp() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)
    return torch.nn.Sequential(*layers)


@pytest.mark.parametrize("arguments", [{}, {"backend": "inductor"}])
def test_a_model_on_the_hpu_is_compiled_by_the_vendors_backend(arguments, num_compiled):
    model, x = _mlp().to("hpu"), torch.randn(5, 8, device="hpu")
    expected = _train(model, x)
    compiled = torch.compile(model, **arguments)
    for value, other in zip(_train(compiled, x), expected, strict=True):
        torch.testing.assert_close(value, other)
    assert num_compiled() == 2  # forward and backward


def test_module_compile_and_decorator_take_the_same_way(num_compiled):
    model, x = _Doubler(), torch.randn(5, 8, device="hpu")
    expected = model(x)

    @torch.compile
    def negative(y):
        return -y

    model.compile()
    torch.testing.assert_close(negative(model(x)), -expected)
    assert num_compiled() == 2


def test_a_graph_that_makes_its_tensors_on_the_hpu_goes_there_too(num_compiled):
    made = torch.compile(lambda n: torch.ones(n, device="hpu").cumsum(0), fullgraph=True)(4)
    assert made.device.type == "hpu"
    assert made.tolist() == [1, 2, 3, 4]
    assert num_compiled() == 1


def test_graphs_of_other_devices_stay_with_inductor(num_compiled, monkeypatch):
    import torch._inductor.compile_fx as inductor

    seen = []

    def compile_fx(model, inputs, **kwargs):
        seen.append((inputs, kwargs))
        return model.forward

    monkeypatch.setattr(inductor, "compile_fx", _patched(compile_fx))
    model, x = _mlp(), torch.randn(5, 8)
    expected = model(x)
    torch.testing.assert_close(torch.compile(model, mode="reduce-overhead")(x), expected)
    assert seen[0][1]["config_patches"] == {"triton.cudagraphs": True}
    torch.compile(model.to("hpu"))(x.to("hpu"))
    assert len(seen) == 1
    assert num_compiled() == 1


def test_one_graph_on_both_devices_computes_what_torch_would(num_compiled):
    def on_both(x, y):
        return x.sin() + 1, y.cos() + 1

    x, y = torch.randn(3), torch.randn(3)
    for value, other in zip(torch.compile(on_both)(x, y.to("hpu")), on_both(x, y), strict=True):
        torch.testing.assert_close(value.cpu(), other)
    assert num_compiled() == 1


def test_an_operation_on_two_devices_raises_what_torch_raises():
    with pytest.raises(RuntimeError, match=r"on the same device.*hpu"):
        torch.compile(torch.add)(torch.ones(2), torch.ones(2, device="hpu"))


def test_settings_of_inductor_are_named_once_and_ignored(monkeypatch):
    monkeypatch.setattr(hpu_compile, "_has_warned", False)
    x = torch.ones(3, device="hpu")
    with pytest.warns(UserWarning, match=r"\(triton.cudagraphs, by mode= or options=\).*ignored"):
        assert torch.compile(torch.exp, mode="reduce-overhead")(x).device.type == "hpu"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.compile(torch.log, options={"max_autotune": True})(x)
    assert not [w for w in caught if "inductor" in str(w.message)]


def test_other_ranks_do_not_repeat_the_warning(monkeypatch):
    monkeypatch.setattr(hpu_compile, "_has_warned", False)
    monkeypatch.setenv("RANK", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hpu_compile._warn_of({"max_autotune": True})


def test_a_compiler_for_the_hpu_inside_inductor_is_left_alone(monkeypatch):
    from torch._inductor.codegen import common

    wrapped = _patched(lambda model, inputs: "inductor's")
    graph, inputs = torch.fx.symbolic_trace(torch.nn.ReLU()), [torch.ones(1, device="hpu")]
    monkeypatch.setitem(common.device_codegens, "hpu", object())
    assert wrapped(graph, inputs) == "inductor's"


def test_lazy_mode_refuses_and_says_what_to_do():
    result = fork_python(
        "import torch; torch.compile(torch.exp)(torch.ones(2).to('hpu'))",
        env={"PT_HPU_LAZY_MODE": "1"},
        check=False,
    )
    assert result.returncode
    assert "Set PT_HPU_LAZY_MODE=0 to compile with torch, or do not call" in result.stderr


@pytest.mark.parametrize(
    "imports",
    ["import torch", "import torch, torch._inductor.compile_fx, lightning_gaudi"],
)
def test_any_order_of_imports_serves_a_script_that_never_heard_of_us(imports):
    autoload = "0" if "lightning_gaudi" in imports else None
    result = fork_python(
        f"{imports}; print(torch.compile(torch.exp)(torch.zeros(2, device='hpu')))",
        env={"LIGHTNING_GAUDI_AUTOLOAD": autoload},
    )
    assert "tensor([1., 1.], device='hpu:0')" in result.stdout
