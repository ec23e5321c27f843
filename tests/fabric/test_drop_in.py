"""Scripts that know nothing of us: imports in any order, launched by themselves and by `fabric`."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from lightning_gaudi._core import mirror
from lightning_gaudi._patches import fabric_run
from lightning_gaudi._patches.apply import MissingNameError
from tests.helpers.forked import fork_python
from tests.helpers.process import run, run_python

TRAIN = """
fabric = Fabric(accelerator={accelerator}, devices=1)
model = torch.nn.Linear(4, 1)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
fabric.backward(model(torch.ones(2, 4, device=fabric.device)).sum())
optimizer.step()
roots = {{name.split(".")[0] for name in sys.modules}}
print(type(fabric.strategy).__module__, fabric.device, model.weight.device)
"""

# A fork has torch, and what Lightning imports of others; a user's process has nothing before.
either = pytest.mark.parametrize(
    "python", [fork_python, pytest.param(run_python, marks=pytest.mark.slow)]
)


@pytest.mark.slow_but("import lightning_gaudi; import lightning_fabric-0-fork_python")
@either
@pytest.mark.parametrize(
    ("imports", "autoload"),
    [
        ("import lightning_gaudi; import lightning_fabric", "0"),
        ("import lightning_fabric; import lightning_gaudi", "0"),
        ("from lightning_gaudi.pytorch_lightning.fabric import HPUAccelerator", "1"),
    ],
)
def test_lightning_fabric_alone_in_any_order(python: Any, imports: str, autoload: str) -> None:
    accelerator = "HPUAccelerator()" if "HPUAccelerator" in imports else "'hpu'"
    train = TRAIN.format(accelerator=accelerator)
    source = f"""
import sys, torch
{imports}
from lightning_fabric import Fabric
{train}
assert roots.isdisjoint({{"lightning", "pytorch_lightning"}}), roots
"""
    assert python(source, env={"LIGHTNING_GAUDI_AUTOLOAD": autoload}).stdout.split() == [
        "lightning_gaudi.pytorch_lightning.fabric.strategies.single",
        "hpu:0",
        "hpu:0",
    ]


@either
def test_our_classes_may_be_what_imports_lightning(python: Any) -> None:
    train = TRAIN.format(accelerator="HPUAccelerator()")
    source = f"""
import sys, torch
from lightning_gaudi.fabric import HPUAccelerator
from lightning.fabric import Fabric
{train}
assert roots.isdisjoint({{"lightning_fabric", "pytorch_lightning"}}), roots
"""
    assert python(source).stdout.split() == [
        "lightning_gaudi.fabric.strategies.single",
        "hpu:0",
        "hpu:0",
    ]


SCRIPT = """
import sys, torch
from lightning_fabric import Fabric

fabric = Fabric({arguments})
{launch}
total = fabric.all_reduce(torch.tensor(fabric.global_rank + 1.0), reduce_op="sum")
fabric.barrier()
assert {{"lightning", "pytorch_lightning"}}.isdisjoint(sys.modules)
print(f"{{type(fabric.strategy).__name__}} {{fabric.strategy.precision.precision}} "
      f"{{total.item()}} on {{fabric.device}} of {{fabric.world_size}}", flush=True)
"""


@pytest.fixture
def script(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT.format(**request.param)))
    return str(path)


CARDS = {"LIGHTNING_GAUDI_SIMULATE": "2"}
OPTIONS = ("--accelerator=hpu", "--devices=2", "--strategy=hpu_ddp", "--precision=bf16-mixed")


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [{"arguments": "accelerator='hpu', devices=2", "launch": "fabric.launch()"}],
    indirect=True,
)
def test_a_script_starts_its_other_ranks(script: str) -> None:
    output = run([sys.executable, script], env=CARDS).stdout
    assert output.count("HPUDDPStrategy 32-true 3.0 on hpu:0 of 2") == 2


@pytest.mark.slow
@pytest.mark.parametrize("script", [{"arguments": "", "launch": ""}], indirect=True)
def test_fabric_run_starts_all_ranks_on_hpus(script: str) -> None:
    main = "from lightning_fabric.cli import _main; _main()"
    output = run([sys.executable, "-c", main, "run", *OPTIONS, script], env=CARDS).stdout
    assert output.count("HPUDDPStrategy bf16-mixed 3.0 on hpu:0 of 2") == 2


def test_fabric_run_tells_torchrun_and_the_script_what_it_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lightning.fabric import Fabric, cli as lightning_cli

    script = tmp_path / "train.py"
    script.touch()
    started: list[list[str]] = []
    monkeypatch.setattr("torch.distributed.run.main", started.append)
    lightning_cli._run.main([*OPTIONS, str(script)], standalone_mode=False)
    assert started[0][0] == "--nproc_per_node=2"
    monkeypatch.delenv("LT_CLI_USED")  # with it, the script's Fabric connects the ranks at once
    strategy = Fabric().strategy
    assert type(strategy).__name__ == "HPUDDPStrategy"
    assert (strategy.num_processes, strategy.precision.precision) == (2, "bf16-mixed")


def test_fabric_run_knows_the_names_and_counts_the_cards(capsys: pytest.CaptureFixture) -> None:
    from lightning.fabric import cli as lightning_cli

    options = {option.name: option for option in lightning_cli._run.params}
    assert "hpu" in options["accelerator"].type.choices
    assert {"hpu_ddp", "hpu_single", "hpu_parallel", "ddp"} <= {*options["strategy"].type.choices}
    count = lightning_cli._get_num_processes
    assert [count("hpu", devices) for devices in ("1", "3", "0,5", "auto")] == [1, 3, 2, 8]
    assert [count("cpu", "3"), count("auto", "2"), count(None, "9")] == [3, 2, 9]
    assert [count(None, "auto"), count("auto", "0,5"), count("cpu", "auto")] == [8, 2, 1]
    with pytest.raises(Exception, match="devices='9' asks for 9 HPUs"):
        count("hpu", "9")


def test_a_command_line_that_has_changed_is_left_alone() -> None:
    from types import ModuleType

    module = ModuleType("some.future.cli")
    with pytest.raises(MissingNameError, match=r"some\.future\.cli has no _SUPPORTED_ACCELERATO"):
        fabric_run.patch_cli(module, mirror.LIGHTNING)
    assert not hasattr(module, "_get_num_processes")
