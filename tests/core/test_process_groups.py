"""What a program leaves behind is asked to end, killed, and gone."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from lightning_gaudi._core.processes import end_group
from tests.helpers.process import is_running

LEFT = """
import os, pathlib, signal, time
def asked(number, frame):
    pathlib.Path("asked").touch()
    if {obeys}:
        os._exit(0)
if os.fork() == 0:
    signal.signal(signal.SIGTERM, asked)
    held = bytearray(2**28)
    pathlib.Path("left").write_text(str(os.getpid()))
    while True:
        time.sleep(1)
"""


@pytest.mark.slow_but("0-False")
@pytest.mark.parametrize(("patience_s", "obeys"), [(0, False), (20, True), (0.5, False)])
def test_nothing_of_a_group_is_left(patience_s: float, obeys: bool, tmp_path: Path) -> None:
    source = LEFT.format(obeys=obeys)
    leader = subprocess.Popen([sys.executable, "-c", source], cwd=tmp_path, start_new_session=True)
    assert leader.wait(timeout=30) == 0
    give_up_at = time.monotonic() + 30
    while not (tmp_path / "left").exists() or not (tmp_path / "left").read_text():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)
    left = int((tmp_path / "left").read_text())
    assert is_running(left)
    end_group(leader.pid, patience_s)
    assert not is_running(left)
    assert (tmp_path / "asked").exists() == bool(patience_s)


def test_a_group_that_has_ended_is_no_error() -> None:
    leader = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    leader.wait(timeout=30)
    end_group(leader.pid, 10)
