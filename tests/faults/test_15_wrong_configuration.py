"""A wrong configuration file, in any project with LightningCLI and in a recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.forked import fork_module, fork_python

PROJECT = """
import sys
from lightning.pytorch.cli import LightningCLI
from tests.faults.attack import Data, Model
LightningCLI(Model, Data, save_config_callback=None, args=["fit", "--config", sys.argv[1]])
"""

WRONG = {
    "unknown key": (
        "trainer:\n  accelerator: hpu\n  max_epoch: 1\n",
        "There is no setting trainer.max_epoch ({path}, line 3). Did you mean trainer.max_epochs?",
    ),
    "unknown section": (
        "trainer:\n  accelerator: hpu\nmodle:\n  dropout: 0.1\n",
        "There is no setting modle.dropout ({path}, line 3). Did you mean model.dropout?",
    ),
    "bracket left open": (
        "trainer:\n  devices: [1\nmodel:\n  dropout: 0.1\n",
        "{path}, line 3, column 6: expected ',' or ']', but got ':' while parsing a flow sequence "
        "that begins in line 2.",
    ),
    "tab": ("trainer:\n\taccelerator: hpu\n", "{path}, line 2, column 1: found character '\\t'"),
    "wrong value": (
        "trainer:\n  accelerator: hpu\n  max_epochs: many\n",
        "It stands in {path}, line 3.",
    ),
    "parameter of a class": (
        "trainer:\n  accelerator: hpu\n  callbacks:\n"
        "    - class_path: lightning.pytorch.callbacks.ModelCheckpoint\n"
        "      init_args:\n        moniter: loss\n",
        "It stands in {path}, line 6. Did you mean monitor?",
    ),
    "class": (
        "trainer:\n  callbacks:\n    - class_path: lightning.pytorch.callbacks.ModelCheckpont\n",
        "It stands in {path}, line 2. Did you mean ModelCheckpoint?",
    ),
}
"""A file, and what is said of it."""


@pytest.mark.parametrize("kind", WRONG)
def test_any_project_names_file_line_and_nearest_key(
    kind: str, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    text, expected = WRONG[kind]
    path = tmp_path / "config.yaml"
    path.write_text(text)
    result = fork_python(PROJECT, str(path), check=False)
    assert result.returncode == 2
    assert expected.format(path=path) in result.stderr.replace(r"\t", "\\t")
    measured(kind)


@pytest.mark.parametrize("kind", ["unknown key", "bracket left open"])
def test_a_recipe_does_too(kind: str, tmp_path: Path, measured: Callable[[str], None]) -> None:
    text, expected = WRONG[kind]
    path = tmp_path / "config.yaml"
    path.write_text(text)
    result = fork_module("recipes.mrpc", "fit", "--config", str(path), check=False)
    assert result.returncode == 2
    last = result.stderr.strip().splitlines()[-1]
    assert expected.format(path=path) in last
    measured(f"{kind} in a recipe, in one line")
