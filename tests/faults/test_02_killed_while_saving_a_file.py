"""Every checkpoint that is there loads, and nothing else is there after a restart."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.saving import kill_savers
from tests.helpers.ranks import call_forked


@pytest.mark.parametrize(
    ("num_kills", "temporary", "where"),
    [(50, None, "one file system"), (20, "/dev/shm", "TMPDIR on another")],
)
def test_killed_while_saving(
    tmp_path: Path,
    measured: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    num_kills: int,
    temporary: str | None,
    where: str,
) -> None:
    if temporary is not None:
        if Path(temporary).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip(f"{temporary} is on the file system of {tmp_path}")
        monkeypatch.setenv("TMPDIR", tempfile.mkdtemp(dir=temporary))
    call_forked(kill_savers, tmp_path, "whole", num_kills, timeout=500)
    littered, loaded, steps = map(int, (tmp_path / "result").read_text().split())
    assert littered > num_kills // 4  # they were killed while they wrote
    measured(
        f"{num_kills} kills ({where}), {littered} left litter, {loaded} of {loaded} checkpoints "
        f"load, {steps} steps, no litter after a restart"
    )
