"""habana_frameworks.torch.core: steps, and what importing the package changes in torch."""

from __future__ import annotations

import habana_frameworks.torch as ht
import pytest
import torch
from habana_frameworks.torch import core
from habana_frameworks.torch.utils.internal import is_lazy

from tests.helpers.forked import fork_python
from tests.helpers.process import run_python

LAZY = {"PT_HPU_LAZY_MODE": "1"}


def test_importing_registers_torch_hpu():
    assert torch.hpu is ht.hpu
    assert torch.get_device_module("hpu") is ht.hpu


def test_closures_do_nothing_in_eager_mode():
    called = []
    core.add_step_closure(called.append, (1,))
    core.mark_step()
    core.iter_mark_step()
    assert called == []


def test_mark_step_flushes_then_runs_closures_once_in_lazy_mode():
    out = fork_python(
        """
        import torch, _hpu_sim
        from habana_frameworks.torch import core
        called, stats = [], _hpu_sim.graph_stats
        x = torch.ones(2, device="hpu") + 1
        core.add_step_closure(lambda *a: called.append((a, stats()["pending_ops"])), (1, 2))
        assert called == []
        core.mark_step()
        core.mark_step()
        print(called)
        """,
        env=LAZY,
    ).stdout
    assert out == "[((1, 2), 0)]\n"


MODULES = """
import copy, pickle, torch
from torch import nn
net = nn.Sequential()
net.add_module("first", nn.Linear(4, 4))
net.second = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
found = {name: (module.custom_name, len(module._forward_hooks), len(module._forward_pre_hooks))
         for name, module in net.named_modules() if name and hasattr(module, "custom_name")}
print(found)
print(list(net.state_dict()), hasattr(net, "custom_name"))
x = torch.ones(2, 4, device="hpu")
expected = net.to("hpu")(x)
expected.sum().backward()
twin = copy.deepcopy(net)
data = pickle.dumps(net.cpu())
print(b"habana_frameworks.torch.core.torch_overwrites" in data, b"_post_fwd_hook" in data)
again = pickle.loads(data).to("hpu")
print(torch.equal(twin(x), expected), torch.equal(again(x), expected))
try:
    twin(x[:, :3])
except RuntimeError:
    print(torch.equal(twin(x), expected))
"""


def test_lazy_mode_names_and_hooks_modules():
    first, *lines = fork_python(MODULES, env=LAZY).stdout.splitlines()
    names = {"first": "first", "second": "second", "second.0": "0", "second.1": "1"}
    assert first == str({name: (custom, 1, 1) for name, custom in names.items()})
    keys = [f"{name}.{kind}" for name in ("first", "second.0") for kind in ("weight", "bias")]
    assert lines == [f"{keys} False", "True True", "True True", "True"]


def test_eager_mode_leaves_modules_alone():
    assert fork_python(MODULES).stdout.startswith("{}\n")


@pytest.mark.parametrize(
    ("value", "expected"), [(None, False), ("", False), ("0", False), ("1", True), ("2", True)]
)
def test_lazy_mode_is_read_from_the_environment(monkeypatch, value, expected):
    monkeypatch.delenv("PT_HPU_LAZY_MODE", raising=False)
    if value is not None:
        monkeypatch.setenv("PT_HPU_LAZY_MODE", value)
    assert is_lazy.__wrapped__() is expected  # past its cache


@pytest.mark.slow
def test_the_device_is_in_the_mode_of_the_process():
    source = """
        import torch, _hpu_sim
        from habana_frameworks.torch.utils.internal import is_lazy
        print(is_lazy(), _hpu_sim.is_lazy())
        """
    assert fork_python(source).stdout == "False False\n"
    assert fork_python(source, env=LAZY).stdout == "True True\n"


def test_manual_seed_seeds_the_hpu_too():
    torch.manual_seed(7)
    first = torch.rand(4, device="hpu")
    torch.manual_seed(7)
    assert torch.equal(first, torch.rand(4, device="hpu"))
    assert torch.hpu.initial_seed() == 7


def test_seed_seeds_the_hpu_with_the_same_value():
    assert torch.seed() == torch.hpu.initial_seed()


def test_fork_rng_restores_the_hpu_generator_on_a_server_of_several_cards():
    assert torch.hpu.device_count() > 1
    torch.manual_seed(3)
    with torch.random.fork_rng():
        inside = torch.rand(3, device="hpu")
    assert torch.equal(inside, torch.rand(3, device="hpu"))


def test_tensors_and_modules_move_by_hpu():
    tensor = torch.ones(2)
    assert not tensor.is_hpu
    moved = tensor.hpu()
    assert moved.is_hpu
    assert moved.hpu() is moved
    assert str(tensor.hpu("hpu:0").device) == "hpu:0"
    assert torch.nn.Linear(2, 2).hpu().weight.is_hpu
    with pytest.raises(ValueError, match="Expected an hpu device, got 'cpu'"):
        tensor.hpu("cpu")


def test_eager_mode_keeps_torch_save_and_load(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"x": torch.ones(2, device="hpu")}, path)
    assert torch.load(path, weights_only=True)["x"].is_hpu


def test_lazy_mode_saves_cpu_tensors_and_loads_pickles_by_default(tmp_path):
    fork_python(
        """
        import pathlib, sys, torch
        import habana_frameworks.torch
        path = sys.argv[1]
        saved = {"x": torch.ones(2, device="hpu"), "y": [torch.zeros(1)]}
        saved["z"] = pathlib.PurePosixPath("a")
        torch.save(saved, path)
        load = torch.load.__wrapped__  # the vendor's, under the patch "lazy-load"
        loaded = load(path)  # weights_only=False by default: "z" needs it
        assert loaded["x"].device.type == "cpu" and loaded["z"] == saved["z"]
        assert load(path, weights_only=None)["z"] == saved["z"]
        assert load(path, map_location="hpu")["y"][0].is_hpu
        assert load(path, map_location=lambda tensor, place: tensor)["x"].device.type == "cpu"
        try:
            load(path, weights_only=True)
        except Exception as error:
            assert "Weights only load failed" in str(error), error
        else:
            raise AssertionError
        torch.save({"x": torch.ones(2, device="hpu")}, path)
        assert load(path, weights_only=True)["x"].tolist() == [1, 1]
        """,
        str(tmp_path / "x.pt"),
        env=LAZY,
    )


SHARED = """
    import torch
    from habana_frameworks.torch.core import weight_sharing
    weight_sharing.enable_weight_sharing()
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[1].weight = model[0].weight
    for device in ("hpu", "cpu", "hpu"):
        model.to(device)
        assert model[1].weight is model[0].weight
        assert model[0].weight.device.type == device
    model(torch.ones(1, 2, device="hpu")).sum().backward()
    assert torch.equal(model[1].weight.grad.cpu(), model[0].weight.grad.cpu())
    """


@pytest.mark.slow_but("0")
@pytest.mark.parametrize("lazy", ["0", "1"])
def test_shared_parameters_stay_shared_when_a_module_moves(lazy):
    fork_python(SHARED, env={"PT_HPU_LAZY_MODE": lazy})


def test_inference_calls_switch_inference_on_and_off():
    model = torch.nn.Linear(2, 2).eval()
    x = torch.rand(3, 2)
    fused = core.hpu_inference_set_env(model)
    torch.testing.assert_close(fused(x), model(x))
    assert core.hpu_inference_set_env() is None
    assert torch.hpu.is_inference_mode_enabled()
    assert torch.hpu.is_matmul3d_2d_reshape_enabled()
    assert core.hpu_inference_initialize(fused.to("hpu"), mark_only_scales_as_const=True) is None
    assert core.hpu_inference_reset_env() is None
    assert not torch.hpu.is_inference_mode_enabled()


def test_inference_takes_batch_norms_into_convolutions():
    torch.manual_seed(0)
    layers = (torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    model = torch.nn.Sequential(*layers)
    for _ in range(3):
        model(torch.rand(2, 3, 8, 8) + 1)
    x = torch.rand(2, 3, 8, 8)
    with pytest.warns(UserWarning, match="Nothing is fused: The model is in training mode"):
        assert core.hpu_inference_set_env(model) is model
    fused = core.hpu_inference_set_env(model.eval())
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in fused.modules())
    assert len(list(model.modules())) == 4  # the model itself is as it was
    torch.testing.assert_close(fused(x), model(x), rtol=1e-5, atol=1e-6)
    core.hpu_inference_reset_env()


@pytest.mark.slow
def test_an_inactive_simulator_says_how_to_activate_it():
    source = """
        import sys
        from lightning_gaudi.simulator.settings import STAND_IN
        sys.path.append(str(STAND_IN))
        try:
            import habana_frameworks.torch
        except ImportError as error:
            print(error)
        """
    out = run_python(source, env={"LIGHTNING_GAUDI_SIMULATE": None}).stdout
    assert "Set LIGHTNING_GAUDI_SIMULATE=1 before torch is imported" in out


@pytest.mark.slow
@pytest.mark.parametrize("switch", ["0", pytest.param(None, marks=pytest.mark.slow)])
def test_the_stand_in_activates_the_simulator_if_the_environment_asks(switch):
    source = """
        import sys
        from lightning_gaudi.simulator.settings import STAND_IN
        sys.path.append(str(STAND_IN))
        import habana_frameworks.torch as ht
        import torch
        print(torch.ones(1, device="hpu").device, ht.hpu is torch.hpu)
        """
    env = {"LIGHTNING_GAUDI_AUTOLOAD": switch}
    assert run_python(source, env=env).stdout == "hpu:0 True\n"


def test_what_no_code_of_ours_uses_is_loaded_when_it_is_asked_for() -> None:
    """A class that is called as its module stays the class, however it was imported."""
    out = fork_python(
        """
        import sys, torch, lightning.pytorch as pl, habana_frameworks.torch as ht
        def unused():
            return sorted(
                name.rpartition(".")[2] for name, each in sys.modules.items()
                if "stand_in_unused" in (getattr(each, "__file__", None) or "")
                and type(each).__name__ != "_Late"
            )
        pl.Trainer(accelerator="hpu", devices=1, logger=False)
        print(unused())
        from habana_frameworks.torch.hpex.optimizers.FusedSGD import FusedSGD
        import habana_frameworks.torch.hpex.kernels.Fp8FusedSDPA as module
        print(FusedSGD is ht.hpex.optimizers.FusedSGD, callable(module.fp8_fused_sdpa), unused())
        print(callable(ht.hpex.kernels.fp8_fused_sdpa), ht.hpex.movingavrg.FusedEMA.__name__)
        from habana_frameworks.torch.hpex.kernels import *
        print(CTCLoss.__name__, ht.hpex.experimental.transformer_engine.Linear.__name__)
        """
    ).stdout
    assert out.splitlines() == [
        "[]",
        "True True ['fp8_fused_sdpa', 'fused_sgd']",
        "True FusedEMA",
        "CTCLoss Linear",
    ]
