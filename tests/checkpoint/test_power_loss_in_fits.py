"""The power goes at any moment of a fit: the newest whole checkpoint is found, and no half of one.

What the fit does to its files is recorded as the kernel sees it, and each state that the disk may
be in after any of it is rebuilt and looked at; see `helpers.disk_states`.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from tests.checkpoint.power_loss_cases import Case, lose_power
from tests.helpers import syscalls
from tests.helpers.disk_states import Disk
from tests.helpers.ranks import call_forked

_WHY_NOT = syscalls.why_not()
pytestmark = pytest.mark.skipif(_WHY_NOT is not None, reason=str(_WHY_NOT))

NUM_STATES = 2000
CASES = {
    "file": Case("auto"),
    "file, 2 ranks": Case("auto", 2),
    "file, asynchronous": Case("auto", is_async=True),
    "file, beside another run's": Case("auto", is_again=True),
    "FSDP2": Case("fsdp2", 2),
    "FSDP2, asynchronous": Case("fsdp2", 2, is_async=True),
    "FSDP2, names cannot be exchanged": Case("fsdp2", 2, is_exchanged=False),
    "ZeRO": Case("zero2", 2),
    "ZeRO, asynchronous": Case("zero2", 2, is_async=True),
    "ZeRO, beside another run's": Case("zero2", 2, is_again=True),
}


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", CASES)
def test_newest_checkpoint_is_found_whole(name: str, tmp_path: Path) -> None:
    call_forked(lose_power, tmp_path, CASES[name], NUM_STATES, 1, timeout=1400)
    found = json.loads((tmp_path / "result").read_text())
    print(f"{name}: {found}")
    assert found["all"] or found["states"] == NUM_STATES


@pytest.mark.slow_but("file")
@pytest.mark.parametrize("name", ["file", "FSDP2"])
def test_newest_checkpoint_is_found_whole_in_few_states(name: str, tmp_path: Path) -> None:
    call_forked(
        lose_power, tmp_path, CASES[name], 60, random.Random().randrange(10**6), timeout=280
    )
    assert json.loads((tmp_path / "result").read_text())["states"] == 60


def _save(path: Path, *, is_synced: bool, is_named: bool) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb", buffering=0) as file:
        file.write(b"a" * 5000)
        file.write(b"b" * 5000)
        if is_synced:
            os.fsync(file.fileno())
    temporary.rename(path)
    if is_named:
        descriptor = os.open(path.parent, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    syscalls.mark(path.parent, "saved")


def _ends(folder: Path, *, is_synced: bool, is_named: bool) -> set[bytes | None]:
    """What a file that was saved may hold when the power goes after that; None if it is gone."""
    place = folder / "disk"
    place.mkdir(parents=True)
    (place / "x").write_bytes(b"old")
    disk = Disk(place)
    events = syscalls.record(
        lambda: _save(place / "x", is_synced=is_synced, is_named=is_named), place
    )
    states, is_all = disk.follow(events).states(2000, 1)
    assert is_all
    found = [dict(each.tree) for each in states if each.at == len(events)]
    return {each.get("x") for each in found}  # type: ignore[misc]


def test_what_is_not_synced_may_be_lost(tmp_path: Path) -> None:
    call_forked(_look_at_ends, tmp_path, timeout=100)


def _look_at_ends(folder: Path) -> None:
    whole = b"a" * 5000 + b"b" * 5000
    assert _ends(folder / "a", is_synced=True, is_named=True) == {whole}
    assert _ends(folder / "b", is_synced=True, is_named=False) == {b"old", whole}
    found = _ends(folder / "c", is_synced=False, is_named=True)
    assert {b"", bytes(10000), whole} < found
    assert b"old" not in found
    assert any(0 < len(each or b"") < 10000 for each in found)
