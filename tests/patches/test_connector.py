from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import SingleDeviceStrategy, Strategy

from lightning_gaudi import HPUAccelerator, HPUDDPStrategy, SingleHPUStrategy
from tests.helpers.forked import fork_python
from tests.helpers.tiny import QUIET, TinyModule, ValidatedModule, batches, hpu_trainer

# Each line is evaluated with and without the plugin.
CPU_SETTINGS = """
accelerator="cpu"
accelerator="auto"
accelerator="cpu", devices=2
accelerator="cpu", devices=2, strategy="ddp_spawn"
accelerator="cpu", devices="3"
accelerator="cpu", devices=1, num_nodes=2
accelerator="cpu", devices=0
accelerator="cpu", precision="bf16-mixed"
accelerator="cpu", precision="16-mixed"
accelerator="cpu", precision="bf16-true"
accelerator="cpu", precision="64-true"
accelerator="cpu", strategy="ddp", precision="bf16-mixed"
accelerator="cpu", strategy="fsdp"
accelerator="cpu", strategy="single_device"
accelerator="cpu", strategy=pl.strategies.DDPStrategy(find_unused_parameters=True)
accelerator="cpu", strategy=pl.strategies.SingleDeviceStrategy("cpu")
accelerator=pl.accelerators.CPUAccelerator(), devices=2
accelerator="gpu"
accelerator="cuda", devices=1
accelerator="cpu", plugins=pl.plugins.MixedPrecision("bf16-mixed", "cpu")
""".strip().splitlines()

COMPARE = """
import sys, warnings
warnings.simplefilter("ignore")
import lightning.pytorch as pl
for line in sys.argv[1:]:
    try:
        trainer = eval(f"pl.Trainer({line}, logger=False, enable_checkpointing=False)")
        strategy, precision = trainer.strategy, trainer.precision_plugin
        print(line, type(trainer.accelerator).__name__, type(strategy).__name__,
              strategy.root_device, trainer.num_devices, trainer.num_nodes,
              type(strategy.launcher).__name__, type(strategy.checkpoint_io).__name__,
              type(precision).__name__, precision.precision, getattr(precision, "device", None))
    except Exception as error:
        print(line, type(error).__name__, str(error).replace("'hpu', ", ""))
"""


@pytest.mark.slow_but("lightning.pytorch")
@pytest.mark.parametrize("namespace", ["lightning.pytorch", "pytorch_lightning"])
def test_cpu_and_cuda_users_see_no_difference(namespace: str) -> None:
    outputs = []
    for autoload in ("0", "1"):
        env = {"LIGHTNING_GAUDI_SIMULATE": None, "LIGHTNING_GAUDI_AUTOLOAD": autoload}
        source = COMPARE.replace("lightning.pytorch", namespace)
        outputs.append(fork_python(source, *CPU_SETTINGS, env=env))
    without, with_plugin = outputs
    assert without.stdout.count("\n") == len(CPU_SETTINGS)
    assert with_plugin.stdout == without.stdout
    assert with_plugin.stderr == without.stderr


@pytest.mark.parametrize(
    "strategy",
    ["auto", "hpu_single", "single_device", SingleHPUStrategy(), SingleDeviceStrategy("hpu")],
)
def test_single_device_strategies_become_ours(strategy: Any) -> None:
    trainer = hpu_trainer(strategy=strategy, max_steps=2)
    assert type(trainer.strategy) is SingleHPUStrategy
    assert isinstance(trainer.accelerator, HPUAccelerator)
    model = TinyModule()
    trainer.fit(model, batches(2))
    assert {loss.device.type for loss in model.losses} == {"hpu"}


def test_an_instance_of_the_user_stays_the_users_object() -> None:
    checkpoint_io = pl.plugins.TorchCheckpointIO()
    strategy = SingleDeviceStrategy(checkpoint_io=checkpoint_io)
    trainer = hpu_trainer(strategy=strategy, max_steps=2, num_sanity_val_steps=1)
    trainer.fit(ValidatedModule(), batches(2), batches(1))
    assert trainer.strategy is strategy
    assert strategy.checkpoint_io is checkpoint_io


def test_unknown_strategy_is_named() -> None:
    message = "strategy='hpu_singel' is unknown.*pass 'auto', 'hpu_ddp', .* 'hpu_single'"
    with pytest.raises(MisconfigurationException, match=message):
        hpu_trainer(strategy="hpu_singel")
    with pytest.raises(MisconfigurationException, match="strategy='dp' is unknown"):
        hpu_trainer(strategy="dp", devices=2)
    with pytest.raises(ValueError, match="invalid strategy name: `strategy='hpu_singel'`"):
        hpu_trainer(accelerator="cpu", strategy="hpu_singel")


def test_users_subclass_of_our_strategy_is_taken() -> None:
    class Mine(SingleHPUStrategy):
        pass

    assert type(hpu_trainer(strategy=Mine()).strategy) is Mine


@pytest.mark.parametrize(
    "strategy", ["hpu_single", "hpu_ddp", "hpu_parallel", SingleHPUStrategy(), HPUDDPStrategy()]
)
def test_hpu_strategy_on_another_accelerator_is_refused(strategy: str | Strategy) -> None:
    with pytest.raises(MisconfigurationException, match="but the accelerator is 'cpu'"):
        pl.Trainer(accelerator="cpu", strategy=strategy, **QUIET)


@pytest.mark.parametrize("several", [{"devices": 2}, {"devices": 1, "num_nodes": 2}])
@pytest.mark.parametrize("strategy", ["hpu_single", "single_device", SingleHPUStrategy()])
def test_one_cards_strategy_is_refused_on_several(strategy: Any, several: dict[str, int]) -> None:
    with pytest.raises(MisconfigurationException, match=r"trains on one card, but .* ask for 2"):
        hpu_trainer(strategy=strategy, **several)


@pytest.mark.parametrize("several", [{"devices": 2}, {"devices": 1, "num_nodes": 2}])
def test_auto_is_ddp_on_several_cards_and_nodes(several: dict[str, int]) -> None:
    assert type(hpu_trainer(**several).strategy) is HPUDDPStrategy


def test_lightning_cli_trains_on_hpu(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        """
        trainer:
          strategy:
            class_path: lightning_gaudi.SingleHPUStrategy
          plugins:
            - class_path: lightning_gaudi.HPUPrecisionPlugin
              init_args: {precision: bf16-mixed}
        """
    )
    result = fork_python(
        """
        from lightning.pytorch.cli import LightningCLI
        from tests.helpers.tiny import TinyModule, batches
        class Model(TinyModule):
            def train_dataloader(self): return batches(3)
        cli = LightningCLI(Model, run=True, save_config_callback=None)
        devices = {str(loss.device) for loss in cli.model.losses}
        print(devices, cli.trainer.precision_plugin.precision)
        """,
        "fit",
        "--trainer.accelerator=hpu",
        f"--config={config}",
        "--trainer.max_steps=3",
        "--trainer.logger=false",
        f"--trainer.default_root_dir={tmp_path}",
    )
    assert "{'hpu:0'} bf16-mixed" in result.stdout


def test_a_command_of_lightning_cli_without_arguments_is_told_what_it_lacks() -> None:
    result = fork_python(
        """
        from lightning.pytorch.cli import LightningCLI
        from tests.helpers.tiny import TinyModule
        LightningCLI(TinyModule)
        """,
        check=False,
    )
    assert result.returncode == 2
    said = result.stderr.splitlines()[-1]
    assert said.startswith('error: expected "subcommand" to be one of {fit,')
