"""Checkpoints that earlier versions wrote load, and their fits go on as those that never ended."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from tests.strategies.earlier import KINDS, SAVED_AT, train

FIXTURES = Path(__file__).parents[1] / "fixtures" / "checkpoints"
FITS = json.loads((FIXTURES / "fits.json").read_text())


@pytest.mark.slow_but("single")
@pytest.mark.parametrize("name", KINDS)
def test_a_fit_goes_on_from_a_checkpoint_of_an_earlier_version(name: str, tmp_path: Path) -> None:
    """The rows and the random numbers of each rank are those of the fit that wrote it.

    Weights are compared with a fit of this machine: those of another one round otherwise.
    """
    copy = shutil.copytree if (FIXTURES / name).is_dir() else shutil.copyfile
    copy(FIXTURES / name, tmp_path / name)
    resumed = train(name, tmp_path, tmp_path / name, resumes=True)
    whole = train(name, tmp_path, tmp_path / "anew", resumes=False)
    for found, expected, then in zip(resumed, whole, FITS[name], strict=True):
        assert found.rows == then["rows"][SAVED_AT:]
        assert found.draws == then["draws"][SAVED_AT:]
        torch.testing.assert_close(found.weights, expected.weights, atol=1e-5, rtol=0)
