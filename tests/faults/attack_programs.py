"""Programs of attacks, beside the installed Lightning and the first that we support."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.process import environment

OLDEST = "2.5.6"
"""The first Lightning that we support."""

MODES = ("eager", "lazy")

_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def oldest_lightning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with it alone: all else is this environment's."""
    folder = tmp_path_factory.mktemp("lightning")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    done = subprocess.run(
        [*pip, f"lightning=={OLDEST}"], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        pytest.skip(f"Lightning {OLDEST} cannot be installed here, a package index could: {reason}")
    return folder


@pytest.fixture(params=[f"{mode}-{version}" for version in ("installed", OLDEST) for mode in MODES])
def attack(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """Runs a program of attacks and returns what it found: in each mode, beside each Lightning."""
    mode, version = request.param.split("-")
    lightning = request.getfixturevalue("oldest_lightning") if version == OLDEST else None

    def run(program: str) -> dict[str, Any]:
        found = _run(program, tmp_path, mode, lightning)
        assert found["is_lazy"] == (mode == "lazy")
        assert version in ("installed", found["lightning"])
        return found | {"mode": mode, "is_oldest": version == OLDEST}

    return run


def _run(program: str, folder: Path, mode: str, lightning: Path | None) -> dict[str, Any]:
    paths = [str(path) for path in (lightning, _ROOT) if path]
    env = environment(
        {"PYTHONPATH": os.pathsep.join(paths), "PT_HPU_LAZY_MODE": str(int(mode == "lazy"))}
    )
    done = subprocess.run(
        [sys.executable, "-m", program, str(folder)],
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stdout[-2000:] + done.stderr[-4000:]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("FOUND "))
    return found
