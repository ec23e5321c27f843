"""The examples of other trainers reach on HPUs what they reach on the CPU, from the same script."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.helpers.process import run

from .test_examples import CLEAN, FOLDER, NO_PLUGIN, metric

ATOL_TWO = {"hf_trainer": 0.001, "accelerate_loop": 0.01, "trl_sft": 0.02}
"""On two cards sums are in another order, which 100 steps amplify; each sees the same samples."""
each_script = pytest.mark.parametrize("name", ATOL_TWO)


def _start(name: str, folder: Path, *launcher: str, is_cpu: bool = False) -> float:
    folder.mkdir()
    env = NO_PLUGIN if is_cpu else {"LIGHTNING_GAUDI_SIMULATE": "2", **CLEAN}
    command = [sys.executable, *launcher, str(FOLDER / f"{name}.py")]
    offline = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return metric(run(command, env={**offline, **env}, cwd=folder, timeout=280).stdout)


@pytest.mark.slow
@pytest.mark.timeout(900)
@each_script
def test_script_reaches_the_cpus_metric_on_one_and_on_two_cards(tmp_path: Path, name: str) -> None:
    pytest.importorskip("trl" if name == "trl_sft" else "accelerate")
    on_cpu = _start(name, tmp_path / "cpu", is_cpu=True)
    assert _start(name, tmp_path / "one") == on_cpu
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    assert _start(name, tmp_path / "two", *torchrun) == pytest.approx(on_cpu, abs=ATOL_TWO[name])


@each_script
def test_script_names_no_device(name: str) -> None:
    source = (FOLDER / f"{name}.py").read_text()
    assert not re.search(r"gaudi|habana|\bhpu|lightning", source, re.IGNORECASE)
    assert len(source.splitlines()) < 130
