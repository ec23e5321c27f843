"""The page on migrating accounts for every public name of lightning-habana, truly."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .helpers.lightning_habana import ARGUMENTS, MEMBERS, NAMES
from .helpers.migrating import rows, section, spans

FAMILIES = ("lightning_gaudi", "lightning_gaudi.pytorch_lightning")


def there(package: str) -> set[str]:
    """The names of a package of ours that the tables of names have."""
    found = {row[1].strip("`") for row in rows("Names", "lightning_habana")}
    return {name.rpartition(".")[2] for name in found if name.rpartition(".")[0] == package}


def gone() -> set[str]:
    """Modules, and names with or without their modules, that are in other tables."""
    cells = [row[0] for row in (*rows("Not there"), *rows("Functions"))]
    found = {re.sub(r"\(.*", "", span) for cell in cells for span in spans(cell)}
    return {name for name in found if not re.match(r"[A-Z]\w+\.", name)} - there("lightning_gaudi")


def home(module: str) -> str:
    """Our package for what was in a module of lightning-habana."""
    return "lightning_gaudi.fabric" if module.startswith("lightning_habana.fabric") else FAMILIES[0]


def is_gone(module: str, name: str) -> bool:
    below = module.removeprefix("lightning_habana.")
    return not {name, below, f"{below}.{name}"}.isdisjoint(gone())


def test_every_name_is_accounted_for() -> None:
    for module, name in NAMES:
        assert name in there(home(module)) or is_gone(module, name), (module, name)
    for package in (FAMILIES[0], "lightning_gaudi.fabric"):
        assert there(package) <= {name for module, name in NAMES if home(module) == package}
    known = {f"{module}.{name}".removeprefix("lightning_habana.") for module, name in NAMES}
    for name in gone():
        assert any(re.search(rf"(^|\.){name}($|\.)", path) for path in known), name
    assert [spans(row[0])[0] for row in rows("Names", "lightning_habana")] == [
        spans(row[1])[0].rpartition(".")[2] for row in rows("Names", "lightning_habana")
    ]


OLD_FILES = {
    "imports.py": "\n".join(f"from {module} import {name}" for module, name in NAMES),
    "config.yaml": "class_path: lightning_habana.pytorch.strategies.HPUDDPStrategy\n",
    "notebook.ipynb": json.dumps({"source": ["from lightning_habana import HPUAccelerator\n"]}),
    "dotted.py": """
import lightning_habana.pytorch.accelerator as accelerator
lightning_habana.fabric.strategies.ddp.HPUDDPStrategy()
lightning_habana.pytorch.plugins.precision._AMP_DICT
lightning_habana.utils.resources.is_fp8_available()
not_lightning_habana, lightning_habana_too
""",
}
NEW_DOTTED = """
import {family} as accelerator
{family}.fabric.HPUDDPStrategy()
{family}._AMP_DICT
{family}.utils.resources.is_fp8_available()
not_lightning_habana, lightning_habana_too
"""

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
from {package}.strategies import StrategyRegistry

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
    (HPUDeepSpeedStrategy(), HPUDeepSpeedPrecisionPlugin("bf16-mixed", device="hpu")),
    (HPUFSDPStrategy(), HPUFSDPPrecision("bf16-mixed", device="hpu")),
):
    strategy.register_strategies(StrategyRegistry)
    Trainer(accelerator="hpu", devices=2, strategy=strategy, plugins=[plugin], **quiet)
FabricDDPStrategy(), FabricAccelerator(), HPUPrecision("bf16-mixed", device="hpu")


class Custom(HPUDDPStrategy):
    strategy_name = "custom"


Custom.register_strategies(StrategyRegistry)
assert type(Trainer(accelerator="hpu", devices=2, strategy="custom", **quiet).strategy) is Custom
StrategyRegistry.remove("custom")
"""


@pytest.fixture(scope="module", params=FAMILIES)
def migrated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files after the document's command, named after the family."""
    family: str = request.param
    folder = tmp_path_factory.mktemp("project") / family
    folder.mkdir()
    package = "pytorch_lightning" if "_lightning" in family else "lightning.pytorch"
    script = OLD_SCRIPT.replace("{package}", package)
    for name, text in {**OLD_FILES, "train.py": script}.items():
        (folder / name).write_text(text)
    (block,) = re.findall(r"```bash\n(.*?)```", section("From lightning-habana"), re.S)
    # As the document says to for the other family; `git grep` fails where nothing is left.
    command = block[block.index("git ls-files") :].replace("/lightning_gaudi", f"/{family}")
    command = f"set -e; git init -q .; git add .; {command}"
    done = subprocess.run(
        ["bash", "-c", command.replace("'lightning_gaudi", f"'{family}")],
        cwd=folder,
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    )
    left = [line.partition(":")[0] for line in done.stdout.splitlines()]
    assert set(left) == {"dotted.py", "imports.py"}
    return folder


def test_the_command_replaces_all_modules(migrated: Path) -> None:
    family = migrated.name
    lines = (migrated / "imports.py").read_text().splitlines()
    for (module, name), line in zip(NAMES, lines, strict=True):
        package = home(module).replace("lightning_gaudi", family, 1)
        if is_gone(module, name):
            with pytest.raises(ImportError):
                exec(line, {})
            continue
        assert line == f"from {package} import {name}"
        namespace: dict[str, Any] = {}
        exec(line, namespace)
        if isinstance(namespace[name], type):
            is_mirror = namespace[name].__module__.startswith(f"{FAMILIES[1]}.")
            assert is_mirror == (family == FAMILIES[1])
    assert (migrated / "config.yaml").read_text() == f"class_path: {family}.HPUDDPStrategy\n"
    assert f'["from {family} import HPUAccelerator' in (migrated / "notebook.ipynb").read_text()
    assert (migrated / "dotted.py").read_text() == NEW_DOTTED.replace("{family}", family)


def test_a_script_runs_after_the_command(migrated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(migrated)
    assert "lightning_habana" not in (migrated / "train.py").read_text()
    runpy.run_path("train.py", run_name="train")


def members(is_fabric: bool) -> dict[str, bool]:
    """`Class.member` of the tables of what is gone or changed, and whether it is there."""
    found = {}
    for row in (*rows("Not there"), *rows("Methods")):
        if row[0].startswith("Fabric:") <= is_fabric:
            names = [span for span in spans(row[0]) if re.fullmatch(r"[A-Z]\w+\.\w+", span)]
            found |= dict.fromkeys(names, row[1].startswith("the same"))
    return found


DERIVED = ("HPUDDPStrategy", "HPUDeepSpeedStrategy", "HPUFSDPStrategy")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_method_is_there_or_accounted_for(family: str) -> None:
    known = set()
    for package, kind, name in MEMBERS:
        found = getattr(importlib.import_module(package.replace(FAMILIES[0], family, 1)), kind)
        holder = found("32-true") if "Precision" in kind else found
        said = members("fabric" in package)
        names = [f"{kind}.{name}", *[f"HPUParallelStrategy.{name}"] * (kind in DERIVED)]
        known |= {*names} & {*said}
        expected = all(said.get(each, True) for each in names)
        assert hasattr(holder, name) == expected, (package, kind, name)
    assert known == {*members(False), *members(True)}


def gone_arguments() -> dict[str, set[str]]:
    """Classes, and the arguments that they took and take no more."""
    found: dict[str, set[str]] = {}
    for row in rows("Not there"):
        for kind, names in re.findall(r"`([A-Z]\w+)\(([a-z_, ]+)\)`", row[0]):
            found.setdefault(kind, set()).update(names.split(", "))
    return found


@pytest.mark.parametrize(("package", "kind"), ARGUMENTS)
def test_classes_take_the_arguments_that_they_took(package: str, kind: str) -> None:
    """By name, each with the default that it has now."""
    defaults: dict[str, Any] = {}
    found = getattr(importlib.import_module(package), kind)
    for base in reversed(found.__mro__):
        parameters = inspect.signature(base.__init__).parameters.values()
        defaults |= {p.name: p.default for p in parameters if p.default is not p.empty}
    names = set(ARGUMENTS[package, kind].split())
    lost = names & gone_arguments().get(kind, set())
    found(**{name: defaults.get(name) for name in names - lost} | _given(kind))
    for name in lost or gone_arguments().get(kind, set()):
        with pytest.raises(TypeError, match=name):
            found(**_given(kind), **{name: None})


def _given(kind: str) -> dict[str, Any]:
    return {"precision": "bf16-mixed"} if "Precision" in kind else {}
