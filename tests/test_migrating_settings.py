"""What the page on migrating says of settings and functions of lightning-habana is true."""

from __future__ import annotations

import importlib.metadata  # noqa: F401
import logging  # noqa: F401
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException

import lightning_gaudi
import lightning_gaudi.fabric
from lightning_gaudi import HPUAccelerator, vendor

from .helpers.lightning_habana import FOR_STRATEGY, VARIABLES
from .helpers.migrating import rows, spans
from .helpers.tiny import hpu_trainer


def test_what_to_call_instead_of_functions_gives_what_the_document_says() -> None:
    instead = {
        "HPUAccelerator.auto_device_count()": 8,
        "HPUAccelerator.get_device_name()": "GAUDI2",
        "HPUAccelerator().get_device_stats(device).keys()": vendor.memory_stats().keys(),
        "lightning_gaudi.vendor.is_fp16_supported()": True,
        "trainer.global_rank": 0,
        "trainer.world_size": 1,
        "trainer.is_global_zero": True,
        "torch.distributed.is_initialized()": False,
        'logging.getLogger("lightning_gaudi").name': "lightning_gaudi",
        'importlib.metadata.metadata("lightning-gaudi")["Name"]': "lightning-gaudi",
    }
    cells = [row[1] for row in rows("Functions")]
    said = {span for cell in cells for span in re.findall(r"`(\w+[.(][^`]*)`", cell)}
    assert {span for span in said if not any(each.startswith(span) for each in instead)} == {
        "handle.remove()"
    }
    names = {"trainer": hpu_trainer(), "device": "hpu"}
    for expression, value in instead.items():
        assert eval(expression, globals(), names) == value


def test_every_name_for_strategy_is_accounted_for() -> None:
    cells = [row[0] for row in rows("Names", "For `strategy`")]
    assert {span.strip('"') for cell in cells for span in spans(cell)} == {"hpu", *FOR_STRATEGY}
    assert {span for row in rows("Environment") for span in spans(row[0])} - {
        "HPUDeepSpeedStrategy"
    } == {*VARIABLES}


@pytest.mark.parametrize("name", FOR_STRATEGY)
def test_names_for_strategy_are_taken_or_renamed(name: str) -> None:
    (now,) = [row[1] for row in rows("Names", "For `strategy`") if f'"{name}"' in row[0]]
    new = name
    if not now.startswith("the same"):
        new = name.removeprefix("hpu_") if "without `hpu_`" in now else spans(now)[0].strip('"')
    devices = 1 + ("single" not in new)
    for make in (hpu_trainer, _fabric):
        if new != name:
            with pytest.raises(MisconfigurationException, match=f"strategy='{name}' is unknown"):
                make(strategy=name, devices=devices)
        is_refused = new.endswith("nvme")
        with pytest.raises(MisconfigurationException) if is_refused else nullcontext():
            strategy = make(strategy=new, devices=devices).strategy
            assert type(strategy).__module__.startswith("lightning_gaudi.")


PRECISIONS = [
    lightning_gaudi.HPUPrecisionPlugin,
    lightning_gaudi.HPUDeepSpeedPrecisionPlugin,
    lightning_gaudi.HPUFSDPPrecision,
    lightning_gaudi.fabric.HPUPrecision,
    lightning_gaudi.fabric.HPUFSDPPrecision,
]


@pytest.mark.parametrize("plugin", PRECISIONS)
def test_precisions_are_those_of_the_document(plugin: Any) -> None:
    assert plugin("bf16", device="hpu").precision == "bf16-mixed"
    assert plugin(precision="32").precision == "32-true"
    assert plugin("bf16-true").precision == "bf16-true"
    assert plugin("16-mixed").precision == "16-mixed"
    with pytest.raises(
        MisconfigurationException, match=r"Pass precision='fp8' .* plugins=HPUFP8Precision\(\)"
    ):
        plugin("fp8")
    with pytest.raises(MisconfigurationException, match="device='cuda'"):
        plugin("bf16-mixed", device="cuda")


def test_a_strategy_for_one_card_takes_one_of_eight() -> None:
    for package, make in ((lightning_gaudi, hpu_trainer), (lightning_gaudi.fabric, _fabric)):
        for strategy in ("hpu_single", package.SingleHPUStrategy(device=torch.device("hpu"))):
            assert make(strategy=strategy, devices="auto").world_size == 1
        assert make(devices="auto").world_size == 8


@pytest.mark.parametrize("name", ["hpu", "auto"])
def test_hpu_is_a_name_for_accelerator_and_profiler(name: str) -> None:
    trainer = hpu_trainer(accelerator=name, devices="auto", profiler="hpu")
    assert type(trainer.accelerator) is HPUAccelerator
    assert type(trainer.profiler) is lightning_gaudi.HPUProfiler
    assert type(_fabric(accelerator=name).accelerator) is lightning_gaudi.fabric.HPUAccelerator


def test_arguments_mean_what_the_document_says() -> None:
    ours = lightning_gaudi
    assert ours.SingleHPUStrategy(device=torch.device("hpu")).root_device == torch.device("hpu", 0)
    assert hpu_trainer(strategy=ours.HPUFSDPStrategy(), devices=2).precision == "32-true"
    hpus = [torch.device("hpu")] * 2
    assert ours.HPUDDPStrategy(parallel_devices=hpus).root_device == torch.device("hpu", 0)
    assert ours.HPUParallelStrategy is ours.HPUDDPStrategy
    environment = LightningEnvironment()
    assert ours.HPUParallelStrategy(None, None, environment).cluster_environment is environment
    for kind in (ours.HPUDeepSpeedStrategy, ours.HPUFSDPStrategy):
        assert not issubclass(kind, ours.HPUParallelStrategy)
    assert hpu_trainer(strategy="hpu_parallel", devices=2).strategy._start_method == "popen"
    assert hpu_trainer(strategy="ddp_spawn", devices=2).strategy._start_method == "spawn"
    assert HPUAccelerator.is_lazy() is False
    assert HPUAccelerator.get_parallel_devices(HPUAccelerator.parse_devices("2")) == [
        torch.device("hpu", 0),
        torch.device("hpu", 1),
    ]


def test_what_an_hpu_cannot_honour_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config='missing\.json' is neither"):
        lightning_gaudi.HPUDeepSpeedStrategy(config="missing.json")
    for what in ({"offload_optimizer": True}, {"offload_parameters": True, "stage": 3}):
        nvme = {"offload_optimizer_device": "nvme", "offload_params_device": "nvme"}
        with pytest.raises(MisconfigurationException, match="async_io"):
            hpu_trainer(strategy=lightning_gaudi.HPUDeepSpeedStrategy(**what, **nvme), devices=2)
    with pytest.raises(TypeError, match="has no use for storage_options"):
        lightning_gaudi.HPUCheckpointIO().save_checkpoint({}, tmp_path / "x", storage_options={})
    ddp = lightning_gaudi.HPUDDPStrategy
    with pytest.raises(MisconfigurationException, match="process_group_backend='gloo'"):
        hpu_trainer(strategy=ddp(process_group_backend="gloo"), devices=2)
    with pytest.raises(MisconfigurationException, match="but the accelerator is 'cpu'"):
        hpu_trainer(strategy=ddp(), accelerator="cpu")
    for accelerator in (HPUAccelerator(), lightning_gaudi.fabric.HPUAccelerator()):
        with pytest.raises(MisconfigurationException, match="was given the device cpu"):
            accelerator.setup_device(torch.device("cpu"))


SEVERAL = ("HPUDDPStrategy", "HPUDeepSpeedStrategy", "HPUFSDPStrategy", "HPUModelParallelStrategy")


@pytest.mark.parametrize("kind", SEVERAL)
def test_the_backend_is_hccl_before_ranks_are_connected(kind: str) -> None:
    for package, make in ((lightning_gaudi, hpu_trainer), (lightning_gaudi.fabric, _fabric)):
        takes_function = "Model" in kind and package is lightning_gaudi.fabric
        strategy = getattr(package, kind)(*[lambda model, mesh: model] * takes_function)
        assert strategy.process_group_backend == "hccl"
        assert make(strategy=strategy, devices=2).strategy.process_group_backend == "hccl"


def _fabric(**settings: Any) -> Fabric:
    return Fabric(**{"accelerator": "hpu", **settings})
