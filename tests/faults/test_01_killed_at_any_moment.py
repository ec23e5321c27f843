"""SIGKILL at any moment of a fit's life, twice: what ends at last is as if nothing had happened."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.killed_fits import kill_fits
from tests.helpers.ranks import call_forked

NUM_KILLS = int(os.environ.get("NUM_KILLS") or 150)
"""On each number of ranks; fewer for a look."""


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_killed_at_any_moment(
    num_ranks: int, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    call_forked(kill_fits, tmp_path, num_ranks, NUM_KILLS, num_ranks, timeout=2300)
    found = json.loads((tmp_path / "result").read_text())
    shared = "shared memory" if found["has_own_memory"] else "(shared memory not looked at)"
    measured(
        f"any moment, {num_ranks} ranks: {found['kills']} kills in {found['fits']} fits, all "
        f"weights equal, no process, temporary file, {shared} or half a checkpoint left; "
        f"whole ones beside those of a fit without kills: {found['resumed']} from which it went "
        f"on, {found['superseded']} that ModelCheckpoint was about to remove"
    )
