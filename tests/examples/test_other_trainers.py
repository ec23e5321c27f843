"""The examples of other trainers reach on HPUs what they reach on the CPU, from the same script."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.helpers.process import run

from .test_examples import CLEAN, FOLDER, NO_PLUGIN, metric

ATOL_TWO = {"hf_trainer": 0.001, "accelerate_loop": 0.01, "trl_sft": 0.02}
"""Two cards sum in another order, which 100 steps amplify; each step sees the same samples."""
COMPILED = {
    "ACCELERATE_DYNAMO_BACKEND": "HPU_BACKEND",
    "ACCELERATE_DYNAMO_USE_DYNAMIC": "False",
    "TORCH_LOGS": "graph_code",
}
"""What `accelerate launch --dynamo_backend hpu_backend` sets; and torch says what it traced."""
each_script = pytest.mark.parametrize("name", ATOL_TWO)


def _start(name: str, folder: Path, *launcher: str, **env: str | None) -> CompletedProcess[str]:
    folder.mkdir()
    command = [sys.executable, *launcher, str(FOLDER / f"{name}.py")]
    offline = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return run(command, env={**offline, **env}, cwd=folder, timeout=280)


@pytest.mark.slow
@pytest.mark.timeout(900)
@each_script
def test_script_reaches_the_cpus_metric_on_one_card_compiled_and_on_two(
    tmp_path: Path, name: str
) -> None:
    pytest.importorskip("trl" if name == "trl_sft" else "accelerate")
    on_cards = {"LIGHTNING_GAUDI_SIMULATE": "2", **CLEAN}
    on_cpu = metric(_start(name, tmp_path / "cpu", **NO_PLUGIN).stdout)
    assert metric(_start(name, tmp_path / "one", **on_cards).stdout) == on_cpu
    result = _start(name, tmp_path / "compiled", **on_cards, **COMPILED)
    assert metric(result.stdout) == pytest.approx(on_cpu, abs=1e-4)
    assert "TRACED GRAPH" in result.stderr
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    on_two = metric(_start(name, tmp_path / "two", *torchrun, **on_cards).stdout)
    assert on_two == pytest.approx(on_cpu, abs=ATOL_TWO[name])


@each_script
def test_script_names_no_device(name: str) -> None:
    source = (FOLDER / f"{name}.py").read_text()
    assert not re.search(r"gaudi|habana|\bhpu|lightning", source, re.IGNORECASE)
    assert len(source.splitlines()) < 130
