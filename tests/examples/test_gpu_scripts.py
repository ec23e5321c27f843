"""Scripts as they are written for GPUs: `accelerator` is all that is changed, for two HPUs.

In `gpu_scripts/` each is one file with a model larger than a card in mind: DeepSpeed, FSDP, FSDP2
and tensor parallelism, with the Trainer and with Fabric. All have the same model and data, so all
must end with the loss that DDP gives.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.process import run
from tests.helpers.trainers import run_trainers

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).with_name("gpu_scripts")
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))
REFERENCES = ("fabric_deepspeed", "fabric_fsdp", "trainer_fsdp")
"""Those that run with DDP, too; the others are one of these but for the strategy.

Fabric's DeepSpeed does not clip gradients, and its script does not ask for it.
"""
UNTRAINED = math.log(10)
"""The loss of a model that tells nothing about ten classes."""
GPU, HPU = 'accelerator="gpu"', 'accelerator="hpu"'
NAMED = re.compile(r'strategy="\w+"')
"""A strategy that has a name, and that DDP's may take the place of."""
FAMILIES = {
    "lightning": (),
    "pytorch_lightning": (
        ("lightning.pytorch", "pytorch_lightning"),
        ("lightning.fabric", "lightning_fabric"),
    ),
}


def _source(name: str, family: str) -> str:
    """The script on an HPU, with the imports of a project that uses this namespace."""
    source = (FOLDER / f"{name}.py").read_text()
    assert source.count(GPU) == 1
    for old, new in FAMILIES[family]:
        source = source.replace(old, new)
    return source.replace(GPU, HPU)


def _with_ddp(source: str) -> str:
    source, count = NAMED.subn('strategy="ddp"', source)
    assert count == 1
    return source


def _loss(output: str) -> float:
    """What the script prints at its end, on rank 0."""
    losses = re.findall(r"^test_loss: (\S+)$", output, re.MULTILINE)
    assert len(losses) == 1, output
    return float(losses[0])


def _run_all(rank: int, sources: dict[str, str], folder: Path) -> dict[str, str]:
    """The output or traceback of each source, run as the main program, one after another."""
    outputs = {}
    for name, source in sources.items():
        (folder / name).mkdir(exist_ok=True)
        os.chdir(folder / name)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            try:
                exec(compile(source, f"{name}.py", "exec"), {"__name__": "__main__"})
            except Exception:
                traceback.print_exc(file=output)
        outputs[name] = output.getvalue()
    return outputs


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    """The namespace of the imports."""
    return str(request.param)


@pytest.fixture(scope="module")
def outputs(family: str, tmp_path_factory: Any) -> dict[str, str]:
    """What each script prints on two cards, and each reference.

    One after another in the same two processes, which import torch and DeepSpeed once.
    """
    path = tmp_path_factory.mktemp("gpu_scripts")
    sources = {name: _source(name, family) for name in SCRIPTS}
    ddp = {f"{name} with DDP": _with_ddp(sources[name]) for name in REFERENCES}
    first: dict[str, str] = run_trainers(_run_all, path, sources | ddp, path, timeout=280)[0]
    return first


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_ends_with_the_loss_of_ddp(outputs: dict[str, str], name: str) -> None:
    loss = _loss(outputs[name])
    same = name if name in REFERENCES else f"{name.partition('_')[0]}_fsdp"
    assert loss == pytest.approx(_loss(outputs[f"{same} with DDP"]), abs=2e-6)
    assert loss < UNTRAINED - 0.3


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_runs_as_a_program(tmp_path: Path, name: str, family: str) -> None:
    (tmp_path / "train.py").write_text(_source(name, family))
    env = {"LIGHTNING_GAUDI_SIMULATE": "2"}
    result = run([sys.executable, "train.py"], env=env, cwd=tmp_path, timeout=280)
    assert _loss(result.stdout) < UNTRAINED - 0.3
