"""The notebook runs, and prints what it shows."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .blocks import ROOT, shell_environment

pytestmark = [pytest.mark.docs, pytest.mark.slow]
pytest.importorskip("nbmake")

NOTEBOOK = ROOT / "docs" / "tutorials" / "notebook.ipynb"


def _shown(notebook: Path) -> list[list[Any]]:
    """Returns what each cell of code prints or returns, without what goes to stderr."""
    cells = json.loads(notebook.read_text())["cells"]
    return [
        [
            "".join(each.get("text") or each["data"]["text/plain"])
            for each in cell["outputs"]
            if each.get("name") != "stderr"
        ]
        for cell in cells
        if cell["cell_type"] == "code"
    ]


@pytest.mark.timeout(400)
def test_it_prints_what_it_shows(tmp_path: Path) -> None:
    copy = tmp_path / NOTEBOOK.name
    shutil.copy(NOTEBOOK, copy)
    command = [sys.executable, "-m", "pytest", "--nbmake", "--overwrite", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, "--nbmake-timeout=300", str(copy)],
        cwd=tmp_path,
        env=shell_environment(),
        text=True,
        capture_output=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert _shown(copy) == _shown(NOTEBOOK)
