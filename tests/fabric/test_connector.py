"""What `Fabric(accelerator="hpu", ...)` makes of its arguments."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import lightning.fabric
import lightning_fabric
import lightning_gaudi.pytorch_lightning as mirror
import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.fabric.strategies import (
    STRATEGY_REGISTRY,
    DataParallelStrategy,
    DDPStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
    SingleDeviceStrategy,
)
from lightning.fabric.utilities.exceptions import MisconfigurationException

import lightning_gaudi
from lightning_gaudi.fabric import (
    HPUAccelerator,
    HPUCheckpointIO,
    HPUDDPStrategy,
    HPUDeepSpeedStrategy,
    HPUFSDPPrecision,
    HPUFSDPStrategy,
    HPUModelParallelStrategy,
    HPUParallelStrategy,
    HPUPrecision,
    SingleHPUStrategy,
)
from tests.helpers.forked import fork_python


class UserDDP(DDPStrategy):
    """What a project may have written for its GPUs."""

    def __init__(self, mine: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mine = mine

    def setup_module(self, module: torch.nn.Module) -> Any:
        wrapped = super().setup_module(module)
        wrapped.mine = self.mine
        return wrapped


class UserSingle(SingleDeviceStrategy):
    pass


def hpu_fabric(**settings: Any) -> Fabric:
    return Fabric(**{"accelerator": "hpu", "devices": 1, **settings})


@pytest.mark.parametrize(
    "strategy",
    ["auto", "hpu_single", SingleHPUStrategy(), SingleDeviceStrategy("hpu"), UserSingle()],
)
def test_one_card(strategy: Any) -> None:
    fabric = hpu_fabric(strategy=strategy)
    assert isinstance(fabric.strategy, SingleHPUStrategy)
    assert type(fabric.accelerator) is HPUAccelerator
    assert type(fabric.strategy.precision) is HPUPrecision
    assert type(fabric.strategy.checkpoint_io) is HPUCheckpointIO
    assert fabric.device == torch.device("hpu", 0)
    assert fabric.setup(torch.nn.Linear(2, 2)).weight.device == fabric.device


DDP_NAMES: dict[str, dict[str, Any]] = {
    "auto": {"_start_method": "popen"},
    "ddp": {"_start_method": "popen"},
    "ddp_spawn": {"_start_method": "spawn"},
    "ddp_find_unused_parameters_true": {"_ddp_kwargs": {"find_unused_parameters": True}},
    "hpu_ddp": {"_start_method": "popen"},
    "hpu_parallel": {"_start_method": "popen"},
    "HPU_DDP": {"_start_method": "popen"},
}


@pytest.mark.parametrize("name", DDP_NAMES)
def test_every_ddp_name_becomes_ours_and_keeps_its_meaning(name: str) -> None:
    strategy = hpu_fabric(strategy=name, devices=2).strategy
    assert type(strategy) is HPUDDPStrategy
    assert {key: getattr(strategy, key) for key in DDP_NAMES[name]} == DDP_NAMES[name]
    assert strategy.root_device == torch.device("hpu", 0)
    assert strategy.parallel_devices == [torch.device("hpu", 0), torch.device("hpu", 1)]


def test_cards_are_taken_as_named() -> None:
    strategy = hpu_fabric(devices=[5, 2]).strategy
    assert strategy.parallel_devices == [torch.device("hpu", 5), torch.device("hpu", 2)]
    assert hpu_fabric(devices="auto").world_size == 8
    assert type(hpu_fabric(num_nodes=2).strategy) is HPUDDPStrategy


def test_an_instance_stays_the_users_object_with_its_arguments() -> None:
    checkpoint_io = TorchCheckpointIO()
    strategy = DDPStrategy(
        checkpoint_io=checkpoint_io,
        precision=HPUPrecision("bf16-mixed"),
        timeout=timedelta(seconds=7),
        process_group_backend="hccl",
        bucket_cap_mb=1,
    )
    fabric = hpu_fabric(strategy=strategy, devices=2)
    assert fabric.strategy is strategy
    assert type(strategy) is HPUDDPStrategy
    assert strategy.checkpoint_io is checkpoint_io
    assert strategy.precision.precision == "bf16-mixed"
    assert strategy._timeout == timedelta(seconds=7)
    assert strategy._ddp_kwargs == {"bucket_cap_mb": 1}


def test_a_users_subclass_keeps_its_overrides_and_pickles() -> None:
    strategy = UserDDP(mine=3)
    assert hpu_fabric(strategy=strategy, devices=2).strategy is strategy
    assert type(strategy).__mro__[1:3] == (UserDDP, HPUDDPStrategy)
    copy = pickle.loads(pickle.dumps(UserDDP.__new__(type(strategy))))
    assert type(copy) is type(strategy)


def test_users_subclass_of_ours_is_taken() -> None:
    class Mine(HPUParallelStrategy):
        pass

    assert type(hpu_fabric(strategy=Mine(), devices=2).strategy) is Mine


NVME = "deepspeed_stage_3_offload_nvme"
SHARDING = [name for name in STRATEGY_REGISTRY if name.startswith(("deepspeed", "fsdp"))]
SHARDING.remove(NVME)


@pytest.mark.parametrize("name", SHARDING)
def test_every_name_of_a_sharding_strategy_becomes_ours_and_keeps_its_meaning(name: str) -> None:
    strategy = hpu_fabric(strategy=name, devices=2).strategy
    kind = HPUFSDPStrategy if "fsdp" in name else HPUDeepSpeedStrategy
    assert type(strategy) is kind
    arguments = STRATEGY_REGISTRY[name]["init_params"]
    if "stage" in arguments:
        assert strategy.config["zero_optimization"]["stage"] == arguments["stage"]
    if "cpu_offload" in arguments:
        assert strategy.cpu_offload.offload_params


def test_what_deepspeed_cannot_do_on_hpus_is_refused() -> None:
    with pytest.raises(MisconfigurationException, match="pass 'deepspeed_stage_3_offload'"):
        hpu_fabric(strategy=NVME, devices=2)


@pytest.mark.parametrize(
    ("strategy", "kind", "precision"),
    [
        (FSDPStrategy(), HPUFSDPStrategy, HPUFSDPPrecision),
        (ModelParallelStrategy(lambda m, _: m), HPUModelParallelStrategy, HPUPrecision),
    ],
)
def test_an_instance_of_a_sharding_strategy_becomes_ours(
    strategy: Any, kind: type, precision: type
) -> None:
    fabric = hpu_fabric(strategy=strategy, devices=2, precision="bf16-true")
    assert fabric.strategy is strategy
    assert type(strategy) is kind
    assert type(strategy.precision) is precision


@pytest.mark.parametrize(
    ("strategy", "typed"),
    [
        ("dp", "'dp'"),
        ("xla", "'xla'"),
        (DataParallelStrategy(), "DataParallelStrategy()"),
        (SingleDeviceStrategy("meta"), "SingleDeviceStrategy(device='meta')"),
    ],
)
def test_strategies_without_a_form_are_refused_as_typed(strategy: Any, typed: str) -> None:
    with pytest.raises(MisconfigurationException) as raised:
        hpu_fabric(strategy=strategy, devices=2)
    assert f"strategy={typed} does not train on accelerator='hpu'" in str(raised.value)
    assert "lightning_gaudi.fabric.HPUDDPStrategy or SingleHPUStrategy" in str(raised.value)


@pytest.mark.parametrize("strategy", ["ddp_fork", "ddp_notebook", DDPStrategy(start_method="fork")])
def test_forks_are_refused(strategy: Any) -> None:
    with pytest.raises(MisconfigurationException, match="'fork', which the driver"):
        hpu_fabric(strategy=strategy, devices=2)


def test_unknown_names_are_answered_with_what_an_hpu_has() -> None:
    message = "strategy='hpu_dpp' is unknown.*'hpu_ddp', .* 'hpu_single'"
    with pytest.raises(MisconfigurationException, match=message):
        hpu_fabric(strategy="hpu_dpp")
    with pytest.raises(ValueError, match="invalid strategy name"):
        Fabric(accelerator="cpu", strategy="hpu_dpp")
    with pytest.raises(MisconfigurationException, match=r"precision='bf17' is not.*'bf16-mixed'"):
        hpu_fabric(precision="bf17")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"devices": 9}, "devices=9 asks for 9 HPUs, but this machine has 8 HPUs"),
        ({"devices": "0,0"}, "devices='0,0' names a card twice"),
        ({"devices": 2, "strategy": "hpu_single"}, "strategy='hpu_single' trains on one card"),
        ({"strategy": DDPStrategy(process_group_backend="gloo")}, "process_group_backend='gloo'"),
        ({"accelerator": "cpu", "strategy": "hpu_ddp"}, "but the accelerator is 'cpu'"),
        ({"accelerator": "cpu", "strategy": SingleHPUStrategy()}, "but the accelerator is 'cpu'"),
    ],
)
def test_settings_in_conflict_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        hpu_fabric(**settings)


def test_a_device_that_is_no_hpu_is_refused() -> None:
    with pytest.raises(ValueError, match=r"SingleHPUStrategy\(device='cpu'\) is not the HPU"):
        SingleHPUStrategy("cpu")


@pytest.mark.parametrize(
    "accelerator", ["auto", HPUAccelerator(), lightning_gaudi.HPUAccelerator()]
)
def test_auto_and_instances_run_on_the_hpu(accelerator: Any) -> None:
    fabric = hpu_fabric(accelerator=accelerator)
    assert isinstance(fabric.accelerator, HPUAccelerator)
    assert fabric.setup(torch.nn.Linear(2, 2)).weight.device.type == "hpu"


def test_each_namespace_has_its_own_classes() -> None:
    import lightning_gaudi.pytorch_lightning.fabric as other

    for module, ours in ((lightning.fabric, lightning_gaudi.fabric), (lightning_fabric, other)):
        fabric = module.Fabric(accelerator="hpu", devices=2, precision="bf16-mixed")
        assert type(fabric.strategy) is ours.HPUDDPStrategy
        assert type(fabric.accelerator) is ours.HPUAccelerator
        assert type(fabric.strategy.precision) is ours.HPUPrecision
        assert type(fabric.strategy.checkpoint_io) is ours.HPUCheckpointIO
        with pytest.raises(Exception, match=f"{ours.__name__}.HPUDDPStrategy".replace(".", r"\.")):
            module.Fabric(accelerator="hpu", devices=2, strategy="dp")
    assert mirror.HPUAccelerator.__mro__[1] is other.HPUAccelerator


def test_a_strategy_a_user_registered_becomes_ours() -> None:
    STRATEGY_REGISTRY.register("mine", UserDDP, mine=4)
    try:
        strategy = hpu_fabric(strategy="mine", devices=2).strategy
    finally:
        STRATEGY_REGISTRY.remove("mine")
    assert isinstance(strategy, HPUDDPStrategy)
    assert strategy.mine == 4


def test_variables_of_the_environment_are_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "LT_ACCELERATOR": "hpu",
        "LT_STRATEGY": "hpu_ddp",
        "LT_DEVICES": "3",
        "LT_NUM_NODES": "2",
        "LT_PRECISION": "bf16-true",
    }.items():
        monkeypatch.setenv(name, value)
    strategy = Fabric().strategy
    assert type(strategy) is HPUDDPStrategy
    assert (strategy.num_processes, strategy.num_nodes) == (3, 2)
    assert strategy.precision.precision == "bf16-true"
    monkeypatch.setenv("LT_STRATEGY", "hpu_dpp")
    with pytest.raises(MisconfigurationException, match="strategy='hpu_dpp' is unknown"):
        Fabric()


# Each line is evaluated with and without the plugin.
CPU_SETTINGS = """
accelerator="cpu"
accelerator="auto", devices=1
accelerator="cpu", devices=2
accelerator="cpu", devices=2, strategy="ddp_spawn"
accelerator="cpu", devices=2, strategy="ddp_fork"
accelerator="cpu", devices=2, strategy="dp"
accelerator="cpu", devices="3"
accelerator="cpu", devices=1, num_nodes=2
accelerator="cpu", devices=0
accelerator="cpu", devices=1, precision="bf16-mixed"
accelerator="cpu", devices=1, precision="16-mixed"
accelerator="cpu", devices=1, precision="bf16-true"
accelerator="cpu", devices=1, precision="64-true"
accelerator="cpu", devices=1, precision="bf17"
accelerator="cpu", strategy="fsdp"
accelerator="cpu", strategy="nonsense"
accelerator="cpu", strategy=fabric.strategies.DDPStrategy(find_unused_parameters=True), devices=2
accelerator="cpu", strategy=fabric.strategies.SingleDeviceStrategy("cpu")
accelerator=fabric.accelerators.CPUAccelerator(), devices=2
accelerator="gpu"
accelerator="cuda", devices=1
accelerator="cpu", plugins=fabric.plugins.MixedPrecision("bf16-mixed", "cpu")
""".strip().splitlines()

COMPARE = """
import sys, warnings
warnings.simplefilter("ignore")
import lightning_fabric as fabric
for line in sys.argv[1:]:
    try:
        made = eval(f"fabric.Fabric({line})")
        strategy, precision = made.strategy, made.strategy.precision
        print(line, type(made.accelerator).__name__, type(strategy).__name__, made.device,
              made.world_size, type(strategy.launcher).__name__,
              type(strategy.checkpoint_io).__name__, type(precision).__name__,
              precision.precision, getattr(precision, "device", None))
    except Exception as error:
        print(line, type(error).__name__, str(error).replace(", hpu", ""))
"""


@pytest.mark.slow
def test_cpu_and_cuda_users_see_no_difference() -> None:
    outputs = []
    for autoload in ("0", "1"):
        env = {"LIGHTNING_GAUDI_SIMULATE": None, "LIGHTNING_GAUDI_AUTOLOAD": autoload}
        outputs.append(fork_python(COMPARE, *CPU_SETTINGS, env=env))
    without, with_plugin = outputs
    assert without.stdout.count("\n") == len(CPU_SETTINGS)
    assert with_plugin.stdout == without.stdout
    assert with_plugin.stderr == without.stderr
