"""Ranges named after the modules: in the recorded steps, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from lightning_gaudi import HPUProfiler
from lightning_gaudi.profiler.modules import ModuleRanges
from lightning_gaudi.strategies import SingleHPUStrategy
from tests.helpers.profiles import NUM_STEPS, ReadingModule, event_counts, fit, read_trace
from tests.helpers.tiny import TinyModule, batches, hpu_trainer

LINEAR = "[pl][module]torch.nn.modules.linear.Linear"


class CountsHooks(pl.Callback):
    """Whether a module has hooks in each step."""

    def __init__(self) -> None:
        self.has_hooks: list[bool] = []

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        layer = pl_module.net[0]  # type: ignore[index]
        self.has_hooks.append(bool(layer._forward_hooks or layer._forward_pre_hooks))


def recorded(model: nn.Module, *inputs: Any) -> list[str]:
    """The names of the modules whose ranges torch's profiler sees, in order."""
    ranges = ModuleRanges(model)
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        ranges.show(True)
        try:
            model(*inputs)
        finally:
            ranges.show(False)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    events = sorted(trace.events(), key=lambda event: event.time_range.start)
    return [event.name.split(": ")[1] for event in events if event.name.startswith("[pl][module]")]


def test_modules_are_in_trace_and_events_of_the_recorded_steps(tmp_path: Path) -> None:
    hooks = CountsHooks()
    profiler = HPUProfiler(tmp_path, group_by_input_shapes=True)
    module = ReadingModule()
    fit(tmp_path, profiler, module, callbacks=[hooks])
    events = read_trace(tmp_path / "fit-rank0.4.pt.trace.json")
    assert [event["name"] for event in events].count(f"{LINEAR}: net.0") == 3
    assert event_counts(profiler)[f"{LINEAR}: net.0"] == 3
    assert event_counts(profiler)[f"{LINEAR}: net.3"] == 3
    assert "\nnet.0 (Linear) " in profiler.summary()
    assert hooks.has_hooks == [step in (2, 3, 4) for step in range(NUM_STEPS)]
    assert not module.net[0]._forward_hooks


@pytest.mark.slow
def test_modules_are_left_out_if_asked(tmp_path: Path) -> None:
    hooks = CountsHooks()
    profiler = HPUProfiler(tmp_path, record_module_names=False)
    fit(tmp_path, profiler, callbacks=[hooks])
    assert not [name for name in event_counts(profiler) if "[pl][module]" in name]
    assert "[pl][module]" not in (tmp_path / "fit-rank0.4.pt.trace.json").read_text()
    assert not any(hooks.has_hooks)


def test_a_forward_that_fails_ends_its_range() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("as asked")

    class Catches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fails, self.after = Fails(), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            try:
                self.fails(x)
            except ValueError:
                return self.after(x)
            raise AssertionError

    model = Catches()
    ranges = ModuleRanges(model)
    ranges.show(True)
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        model(torch.ones(2))
    ranges.show(False)
    times = {event.name.split(": ")[-1]: event.time_range for event in trace.events()}
    assert times["fails"].end <= times["after"].start


def test_a_module_that_calls_itself_has_a_range_for_each_call() -> None:
    class Recursive(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return self(x[1:]) + 1 if len(x) else x

    assert recorded(nn.Sequential(Recursive()), torch.ones(2)) == ["0", "0", "0"]


@pytest.mark.filterwarnings("ignore")  # the compiler's own deprecations
def test_compiled_modules_are_compiled_as_without_a_profiler(tmp_path: Path) -> None:
    """Hooks in what is compiled would be compiled, too, and again after they are gone."""
    torch.compiler.reset()  # other tests may have used up how often one function is compiled
    module = TinyModule(dropout=0.0)
    module.net[0].compile(backend="hpu_backend")
    module.net = torch.compile(module.net, backend="hpu_backend")  # type: ignore[assignment]
    profiler = HPUProfiler(tmp_path, "mine", with_modules=True)
    with torch.hpu.metric_localcontext("graph_compilation") as metric:
        for used in (profiler, None):
            hpu_trainer(profiler=used, fast_dev_run=3).fit(module, batches(3))
    assert dict(metric.stats())["TotalNumber"] == 2  # forward and backward
    torch.compiler.reset()
    names = {name: count for name, count in event_counts(profiler).items() if "[module]" in name}
    assert names == {"[pl][module]torch._dynamo.eval_frame.OptimizedModule: net": 3}


@pytest.mark.slow_but("regions")
@pytest.mark.filterwarnings("ignore")  # the compiler's own deprecations
@pytest.mark.parametrize("compile", ["regions", "model"])
def test_what_a_strategy_compiles_is_compiled_as_without_a_profiler(
    compile: str, tmp_path: Path
) -> None:
    names: list[str] = []
    numbers: list[int] = []
    for profiler in (None, HPUProfiler(tmp_path, "mine", with_modules=True)):
        torch.compiler.reset()
        with torch.hpu.metric_localcontext("graph_compilation") as metric:
            hpu_trainer(
                profiler=profiler, fast_dev_run=3, strategy=SingleHPUStrategy(compile=compile)
            ).fit(TinyModule(dropout=0.0), batches(3))
        numbers.append(dict(metric.stats())["TotalNumber"])
        if profiler is not None:
            names = [name for name in event_counts(profiler) if "[module]" in name]
    torch.compiler.reset()
    assert numbers[0] == numbers[1] > 0
    expected = ["[pl][module]torch.nn.modules.container.Sequential: net"]
    assert names == (expected if compile == "regions" else [])


def test_a_model_that_is_compiled_whole_has_no_ranges() -> None:
    class Compiled(nn.Sequential):
        _compiler_ctx = ("dynamo",)  # Lightning marks it so

    assert recorded(Compiled(nn.Linear(2, 2)), torch.ones(1, 2)) == []
    assert recorded(nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2)) == ["0"]


@pytest.mark.filterwarnings("ignore")  # TorchScript's deprecation
def test_modules_in_torchscript_have_no_ranges() -> None:
    layers = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    traced = torch.jit.trace(layers, torch.ones(1, 2))
    model = nn.Sequential(torch.jit.script(layers), traced, nn.ReLU())
    assert recorded(model, torch.ones(1, 2)) == ["2"]


@pytest.mark.filterwarnings("ignore")  # the compiler's own deprecations
def test_a_compiled_function_that_calls_a_module_compiles() -> None:
    """That it will be called from there cannot be seen from the module, which has its hooks."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    ranges = ModuleRanges(model)
    ranges.show(True)
    compiled = torch.compile(lambda x: model(x).sum(), backend="eager", fullgraph=True)
    x = torch.ones(1, 2)
    torch.testing.assert_close(compiled(x), model(x).sum())
    ranges.show(False)
    torch.compiler.reset()
