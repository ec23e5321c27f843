"""docs/migrating.md is true: its names import, its command rewrites, its arguments are accepted."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import lightning_gaudi
from lightning_gaudi import HPUAccelerator, HPUCheckpointIO, HPUPrecisionPlugin, SingleHPUStrategy

from .helpers.process import run_python

DOCUMENT = (Path(__file__).parents[1] / "docs" / "migrating.md").read_text()

# Its `__all__` in release 1.7.0: src/lightning_habana/{,pytorch/,fabric/}__init__.py.
HABANA = {
    "HPUAccelerator",
    "HPUCheckpointIO",
    "HPUDataModule",
    "HPUDDPStrategy",
    "HPUDeepSpeedPrecisionPlugin",
    "HPUDeepSpeedStrategy",
    "HPUFSDPPrecision",
    "HPUFSDPStrategy",
    "HPUParallelStrategy",
    "HPUPrecisionPlugin",
    "HPUProfiler",
    "HPU_AVAILABLE",
    "SingleHPUStrategy",
}
HABANA_FABRIC = {
    "HPUAccelerator",
    "HPUCheckpointIO",
    "HPUDDPStrategy",
    "HPUFSDPPrecision",
    "HPUFSDPStrategy",
    "HPUParallelStrategy",
    "HPUPrecision",
    "SingleHPUStrategy",
}


def section(title: str) -> str:
    """The text below a heading, up to the next."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", DOCUMENT, re.M | re.S)
    assert found is not None, title
    return found.group(1)


def rows(title: str) -> list[list[str]]:
    """The rows of the tables below a heading, without their heads."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rules = {index for index, row in enumerate(cells) if set("".join(row)) == {"-"}}
    return [row for index, row in enumerate(cells) if not {index, index + 1} & rules]


def new_names() -> list[str]:
    return [row[1].strip("`") for row in rows("Names")]


def absent_names() -> set[str]:
    return {row[0].strip("`") for row in rows("Not there") if re.fullmatch(r"`\w+`", row[0])}


def test_every_public_name_of_lightning_habana_is_accounted_for() -> None:
    fabric = {name.rsplit(".", 1)[1] for name in new_names() if ".fabric." in name}
    trainer = {name.rsplit(".", 1)[1] for name in new_names() if ".fabric." not in name}
    assert trainer | absent_names() == HABANA
    assert fabric | absent_names() >= HABANA_FABRIC
    assert [row[0].strip("`") for row in rows("Names")] == [
        name.rsplit(".", 1)[1] for name in new_names()
    ]


@pytest.mark.parametrize("family", ["lightning_gaudi", "lightning_gaudi.pytorch_lightning"])
@pytest.mark.parametrize("name", new_names())
def test_a_new_name_imports_from_where_the_document_says(name: str, family: str) -> None:
    module, _, attribute = name.replace("lightning_gaudi", family, 1).rpartition(".")
    found = getattr(importlib.import_module(module), attribute)
    if isinstance(found, type):
        ours = found.__module__
        assert ours.startswith("lightning_gaudi.pytorch_lightning.") == ("pytorch_" in family)


@pytest.mark.parametrize("name", sorted(absent_names()))
def test_a_name_that_is_not_there_is_not_there(name: str) -> None:
    """When it comes, the document is to say so."""
    assert not hasattr(lightning_gaudi, name)
    assert not hasattr(importlib.import_module("lightning_gaudi.fabric"), name)


OLD_SCRIPT = """
import lightning_habana
import lightning_habana.pytorch.accelerator as accelerator
from lightning_habana import HPU_AVAILABLE
from lightning_habana.fabric import HPUPrecision
from lightning_habana.fabric.accelerator import HPUAccelerator as FabricAccelerator
from lightning_habana.fabric.strategies.ddp import HPUDDPStrategy as FabricDDPStrategy
from lightning_habana.pytorch import HPUCheckpointIO
from lightning_habana.pytorch.accelerator import HPUAccelerator
from lightning_habana.pytorch.plugins import HPUDeepSpeedPrecisionPlugin, HPUFSDPPrecision
from lightning_habana.pytorch.plugins.precision import HPUPrecisionPlugin
from lightning_habana.pytorch.profiler.profiler import HPUProfiler
from lightning_habana.pytorch.strategies import HPUDDPStrategy, HPUParallelStrategy
from lightning_habana.pytorch.strategies import HPUDeepSpeedStrategy, HPUFSDPStrategy
from lightning_habana.pytorch.strategies.single import SingleHPUStrategy
import torch
from {package} import Trainer

assert HPU_AVAILABLE and lightning_habana.pytorch.accelerator.HPUAccelerator is HPUAccelerator
assert accelerator.HPUAccelerator is HPUAccelerator
quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False)
trainer = Trainer(
    accelerator=HPUAccelerator(),
    devices=1,
    strategy=SingleHPUStrategy(device=torch.device("hpu"), checkpoint_io=HPUCheckpointIO()),
    plugins=[HPUPrecisionPlugin(precision="bf16-mixed", device="hpu")],
    profiler=HPUProfiler(filename="mine"),
    **quiet,
)
hpus = 2
parallel_hpus = [torch.device("hpu")] * hpus
several = Trainer(
    accelerator=HPUAccelerator(),
    devices=hpus,
    strategy=HPUDDPStrategy(parallel_devices=parallel_hpus, process_group_backend="hccl"),
    **quiet,
)
assert several.world_size == 2, several.world_size
assert isinstance(Trainer(accelerator="hpu", devices=2, **quiet).strategy, HPUParallelStrategy)
for strategy, plugin in (
    (HPUDeepSpeedStrategy(), HPUDeepSpeedPrecisionPlugin("bf16-mixed")),
    (HPUFSDPStrategy(), HPUFSDPPrecision("bf16-mixed")),
):
    Trainer(accelerator="hpu", devices=2, strategy=strategy, plugins=[plugin], **quiet)
FabricDDPStrategy(), FabricAccelerator(), HPUPrecision("bf16-mixed", device="hpu")
print("migrated")
"""


def replacing(family: str) -> str:
    """The document's command, for the files of this folder."""
    (block,) = re.findall(r"```bash\n(.*?)```", section("From lightning-habana"), re.S)
    command = block[block.index("git ls-files") :]
    # As the document says to for the other family.
    return command.replace("/lightning_gaudi", f"/{family}")


@pytest.mark.parametrize(
    ("family", "package"),
    [
        ("lightning_gaudi", "lightning.pytorch"),
        ("lightning_gaudi.pytorch_lightning", "pytorch_lightning"),
    ],
)
def test_the_command_makes_an_old_script_run(family: str, package: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OLD_SCRIPT.replace("{package}", package))
    config = "class_path: lightning_habana.pytorch.strategies.HPUDDPStrategy\n"
    (tmp_path / "config.yaml").write_text(config)
    assert shutil.which("git") is not None
    for command in ("git init -q .", "git add .", replacing(family)):
        subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, timeout=60)
    assert "lightning_habana" not in (tmp_path / "train.py").read_text()
    assert (tmp_path / "config.yaml").read_text() == f"class_path: {family}.HPUDDPStrategy\n"
    result = run_python(
        "import runpy; runpy.run_path('train.py', run_name='__main__')",
        env={"LIGHTNING_GAUDI_SIMULATE": "2"},
        cwd=tmp_path,
    )
    assert "migrated" in result.stdout


def test_old_arguments_are_accepted() -> None:
    assert HPUPrecisionPlugin(precision="bf16", device="hpu").precision == "bf16-mixed"
    assert HPUPrecisionPlugin("32").precision == "32-true"
    assert (
        SingleHPUStrategy(device="hpu", checkpoint_io=HPUCheckpointIO()).root_device.type == "hpu"
    )
    assert HPUAccelerator.get_device_name() == "GAUDI2"
    assert HPUAccelerator.is_lazy() is False
    assert HPUAccelerator.get_parallel_devices(HPUAccelerator.parse_devices("2")) == [
        torch.device("hpu", 0),
        torch.device("hpu", 1),
    ]


@pytest.mark.parametrize("arguments", [{"precision": "16-mixed"}, {"precision": "fp8"}])
def test_a_precision_that_is_gone_says_what_there_is(arguments: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="HPU supports precision='32-true', 'bf16-mixed'"):
        HPUPrecisionPlugin(**arguments)


def test_a_precision_plugin_for_another_device_is_refused() -> None:
    with pytest.raises(Exception, match="device='cuda'"):
        HPUPrecisionPlugin("bf16-mixed", device="cuda")


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightnings_own_old_imports_give_our_classes(package: str) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", section("From Lightning's own HPU classes"), re.S)
    more = """
        from lightning.pytorch.accelerators.hpu import HPUAccelerator as a
        from lightning.pytorch.strategies.single_hpu import SingleHPUStrategy as b
        from lightning.pytorch.plugins.io.hpu_plugin import HPUCheckpointIO as c
        from lightning.pytorch.plugins.precision.hpu import HPUPrecisionPlugin as d
        assert (a, b, c, d) == (HPUAccelerator, SingleHPUStrategy, HPUCheckpointIO,
                                HPUPrecisionPlugin)
        for ours in (a, b, c, d, HPUParallelStrategy):
            assert ours.__module__.startswith(FAMILY), ours
        print(SingleHPUStrategy().root_device)
    """
    family = "lightning_gaudi.pytorch_lightning." if "_" in package else "lightning_gaudi."
    source = "\n".join(line.strip() for line in (block + more).splitlines())
    source = re.sub(r"\(\n?HPUAcc", "(HPUAcc", source)
    source = source.replace("lightning.pytorch.", f"{package}.")
    for_loop = re.compile(r"(for ours.*:)\n(assert)")
    source = for_loop.sub(r"\1 \2", source)
    assert run_python(f"FAMILY = {family!r}\n{source}").stdout.strip() == "hpu:0"
