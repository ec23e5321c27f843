"""The same for folders of shards, torch's and DeepSpeed's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.saving import kill_savers
from tests.helpers.ranks import call_forked

NUM_KILLS = 20


@pytest.mark.parametrize("kind", ["DCP", "DeepSpeed"])
def test_killed_while_saving_shards(
    tmp_path: Path, measured: Callable[[str], None], kind: str
) -> None:
    call_forked(kill_savers, tmp_path, kind, NUM_KILLS, timeout=500)
    littered, loaded, steps = map(int, (tmp_path / "result").read_text().split())
    assert littered > NUM_KILLS // 4
    measured(
        f"{kind}: {NUM_KILLS} kills, {littered} left litter, {loaded} of {loaded} checkpoints "
        f"load, {steps} steps, no litter after a restart"
    )
