from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.plugins import TorchCheckpointIO
from lightning.pytorch.strategies import (
    DDPStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
    SingleDeviceStrategy,
    StrategyRegistry,
)

from lightning_gaudi import (
    HPUDDPStrategy,
    HPUDeepSpeedStrategy,
    HPUFSDPPrecision,
    HPUFSDPStrategy,
    HPUModelParallelStrategy,
    HPUParallelStrategy,
    HPUPrecisionPlugin,
    SingleHPUStrategy,
)
from lightning_gaudi._patches.apply import swap_class
from tests.helpers.tiny import hpu_trainer

DDP_NAMES = {
    "ddp": {"_start_method": "popen"},
    "ddp_spawn": {"_start_method": "spawn"},
    "ddp_find_unused_parameters_true": {"_ddp_kwargs": {"find_unused_parameters": True}},
    "ddp_find_unused_parameters_false": {"_ddp_kwargs": {"find_unused_parameters": False}},
    "ddp_spawn_find_unused_parameters_true": {
        "_start_method": "spawn",
        "_ddp_kwargs": {"find_unused_parameters": True},
    },
    "hpu_ddp": {"_start_method": "popen"},
    "hpu_parallel": {"_start_method": "popen"},
}


class UserDDP(DDPStrategy):
    """What a project may have written for its GPUs."""

    def __init__(self, mine: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mine = mine
        self.calls: list[str] = []

    def setup_distributed(self) -> None:
        self.calls.append("setup_distributed")
        super().setup_distributed()


class UserSingle(SingleDeviceStrategy):
    pass


@pytest.mark.parametrize("name", DDP_NAMES)
def test_every_ddp_name_becomes_ours_and_keeps_its_meaning(name: str) -> None:
    strategy = hpu_trainer(strategy=name, devices=2).strategy
    assert type(strategy) is HPUDDPStrategy
    assert {key: getattr(strategy, key) for key in DDP_NAMES[name]} == DDP_NAMES[name]


def test_an_instance_stays_the_users_object_with_its_arguments() -> None:
    checkpoint_io = TorchCheckpointIO()
    strategy = DDPStrategy(
        checkpoint_io=checkpoint_io,
        timeout=timedelta(seconds=7),
        ddp_comm_hook=print,
        bucket_cap_mb=1,
        static_graph=True,
    )
    trainer = hpu_trainer(strategy=strategy, devices=2)
    assert trainer.strategy is strategy
    assert type(strategy) is HPUDDPStrategy
    assert strategy.checkpoint_io is checkpoint_io
    assert strategy._timeout == timedelta(seconds=7)
    assert strategy._ddp_comm_hook is print
    assert strategy._ddp_kwargs == {"bucket_cap_mb": 1, "static_graph": True}
    assert str(strategy.root_device) == "hpu:0"
    assert [str(device) for device in strategy.parallel_devices] == ["hpu:0", "hpu:1"]


def test_a_users_subclass_overrides_ours_as_it_overrode_lightnings() -> None:
    strategy = UserDDP(mine=3, find_unused_parameters=True)
    assert hpu_trainer(strategy=strategy, devices=2).strategy is strategy
    assert isinstance(strategy, UserDDP)
    assert isinstance(strategy, HPUDDPStrategy)
    assert strategy.mine == 3
    assert strategy._ddp_kwargs == {"find_unused_parameters": True}
    methods = [kind.__name__ for kind in type(strategy).__mro__]
    assert methods[:3] == ["HPUUserDDP", "UserDDP", "HPUDDPStrategy"]
    assert methods.index("RankedMixin") < methods.index("DDPStrategy")


def test_a_users_subclass_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(swap_class(UserDDP(mine=3), DDPStrategy, HPUDDPStrategy)))
    assert type(copy) is type(swap_class(UserDDP(), DDPStrategy, HPUDDPStrategy))
    assert copy.mine == 3


def test_a_users_subclass_of_the_single_device_strategy_becomes_ours() -> None:
    strategy = UserSingle()
    assert hpu_trainer(strategy=strategy).strategy is strategy
    assert isinstance(strategy, SingleHPUStrategy)
    assert str(strategy.root_device) == "hpu:0"


def test_a_strategy_registered_by_a_user_becomes_ours() -> None:
    StrategyRegistry.register("mine", UserDDP, mine=5, start_method="spawn")
    try:
        strategy = hpu_trainer(strategy="mine", devices=2).strategy
    finally:
        StrategyRegistry.remove("mine")
    assert isinstance(strategy, HPUDDPStrategy)
    assert (strategy.mine, strategy._start_method) == (5, "spawn")


def test_parallel_is_another_name_of_ddp() -> None:
    assert HPUParallelStrategy is HPUDDPStrategy


NVME = "deepspeed_stage_3_offload_nvme"
SHARDING = [name for name in StrategyRegistry if name.startswith(("deepspeed", "fsdp"))]
SHARDING.remove(NVME)


@pytest.mark.parametrize("name", SHARDING)
def test_every_name_of_a_sharding_strategy_becomes_ours_and_keeps_its_meaning(name: str) -> None:
    strategy = hpu_trainer(strategy=name, devices=2).strategy
    assert type(strategy) is (HPUFSDPStrategy if "fsdp" in name else HPUDeepSpeedStrategy)
    arguments = StrategyRegistry[name]["init_params"]
    if "stage" in arguments:
        assert strategy.config["zero_optimization"]["stage"] == arguments["stage"]
    if "cpu_offload" in arguments:
        assert strategy.cpu_offload.offload_params


def test_what_deepspeed_cannot_do_on_hpus_is_refused() -> None:
    with pytest.raises(MisconfigurationException, match="pass 'deepspeed_stage_3_offload'"):
        hpu_trainer(strategy=NVME, devices=2)


@pytest.mark.parametrize(
    ("strategy", "kind", "precision"),
    [
        (FSDPStrategy(), HPUFSDPStrategy, HPUFSDPPrecision),
        (ModelParallelStrategy(), HPUModelParallelStrategy, HPUPrecisionPlugin),
    ],
)
def test_an_instance_of_a_sharding_strategy_becomes_ours(
    strategy: Any, kind: type, precision: type
) -> None:
    trainer = hpu_trainer(strategy=strategy, devices=2, precision="bf16-true")
    assert trainer.strategy is strategy
    assert type(strategy) is kind
    assert type(trainer.precision_plugin) is precision


@pytest.mark.parametrize(
    ("strategy", "typed"),
    [
        ("xla", "'xla'"),
        (SingleDeviceStrategy("meta"), "SingleDeviceStrategy(device='meta')"),
    ],
)
def test_what_cannot_be_mapped_is_refused_as_typed(strategy: Any, typed: str) -> None:
    with pytest.raises(MisconfigurationException) as raised:
        hpu_trainer(strategy=strategy)
    assert f"strategy={typed} does not train on accelerator='hpu'" in str(raised.value)
    assert "Pass 'auto', 'hpu_ddp', 'hpu_deepspeed'" in str(raised.value)


@pytest.mark.parametrize("backend", ["gloo", "nccl", "cpu:gloo"])
def test_another_backend_than_hccl_is_refused(backend: str) -> None:
    with pytest.raises(MisconfigurationException, match=f"process_group_backend='{backend}'"):
        hpu_trainer(strategy=DDPStrategy(process_group_backend=backend), devices=2)


@pytest.mark.parametrize("backend", [None, "hccl", "cpu:gloo,hpu:hccl"])
def test_hccl_may_be_named(backend: str | None) -> None:
    hpu_trainer(strategy=DDPStrategy(process_group_backend=backend), devices=2)
