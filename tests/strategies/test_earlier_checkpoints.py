"""Checkpoints that earlier versions wrote load, and their fits go on as those that never ended."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.helpers.forked import fork_python
from tests.strategies.earlier import SAVED_AT, STRATEGIES

FIXTURES = Path(__file__).parents[1] / "fixtures" / "checkpoints"
FITS = json.loads((FIXTURES / "fits.json").read_text())

GO_ON = """
import json, sys, torch
from pathlib import Path
from tests.strategies.earlier import fit
name, folder = {name!r}, Path({folder!r})
resumed = fit(name, folder, folder / name, resumes=True)
weights = [each.detach().cpu().clone() for each in resumed.parameters()]
whole = fit(name, folder, folder / "anew", resumes=False)
others = [each.detach().cpu() for each in whole.parameters()]
largest = max(float((a - b).abs().max()) for a, b in zip(weights, others, strict=True))
print("FOUND", json.dumps([resumed.rows, resumed.draws, largest]))
"""


@pytest.mark.slow_but("single")
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_fit_goes_on_from_a_checkpoint_of_an_earlier_version(name: str, tmp_path: Path) -> None:
    """The rows and the random numbers are those of the fit that wrote it.

    Weights are compared with a fit of this machine: those of another one round otherwise.
    """
    copy = shutil.copytree if (FIXTURES / name).is_dir() else shutil.copyfile
    copy(FIXTURES / name, tmp_path / name)
    out = fork_python(GO_ON.format(name=name, folder=str(tmp_path))).stdout
    (line,) = [line for line in out.splitlines() if line.startswith("FOUND")]
    rows, draws, largest = json.loads(line.removeprefix("FOUND "))
    assert rows == FITS[name]["rows"][SAVED_AT:]
    assert draws == FITS[name]["draws"][SAVED_AT:]
    assert largest < 1e-5
