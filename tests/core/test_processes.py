"""Processes that end together, without torch: they start in a moment."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from lightning_gaudi._core import processes
from lightning_gaudi._core.processes import exit_status
from tests.launch.started import Started, started

START = """
import subprocess, sys, time
from lightning_gaudi._core import processes
from lightning_gaudi._core.processes import rank_monitor
rank_monitor.GRACE_S = 1.5
def other(source):
    source = "from lightning_gaudi._core import processes; import sys, time; " + source
    return subprocess.Popen([sys.executable, "-c", source])
"""
LIVE = "print('here', flush=True); time.sleep(600)"


def _start(source: str, folder: Path) -> contextlib.AbstractContextManager[Started]:
    script = folder / "script.py"
    script.write_text(START + textwrap.dedent(source))
    return started([sys.executable, str(script)], folder)


def _run(source: str, folder: Path) -> tuple[int, str]:
    """Exit status and output of a program that leaves nothing behind."""
    with _start(source, folder) as run:
        status = run.wait(20)
        assert not run.left(), run.output
        return status, run.output


def test_the_first_process_ends_last(tmp_path: Path) -> None:
    status, output = _run(
        """
        processes.start([other("time.sleep(1); print('late')")])
        print("early", flush=True)
        """,
        tmp_path,
    )
    assert (status, output.split()) == (0, ["early", "late"])


def test_one_that_fails_ends_all(tmp_path: Path) -> None:
    """While the first waits in what it cannot leave, and while it waits at its end."""
    for end in ("time.sleep(600)", "pass"):
        status, output = _run(
            f"""
            processes.start([other("time.sleep(600)"), other("sys.exit(3)")])
            {end}
            """,
            tmp_path,
        )
        assert status == 1
        assert "local rank 2 (process" in output
        assert "failed with exit status 3; the other ranks end too." in output


@pytest.mark.slow_but("uncaught")
@pytest.mark.parametrize(
    "failure",
    [
        "raise ValueError('no')",
        """
        from lightning_gaudi._patches import process_group
        process_group.watch_exits()
        try:
            with processes.rank(0):
                raise ValueError('no')
        except ValueError:
            sys.exit(1)
        """,
    ],
    ids=["uncaught", "caught"],
)
def test_the_first_that_fails_ends_all(failure: str, tmp_path: Path) -> None:
    source = f'processes.start([other("time.sleep(600)")])\n{textwrap.dedent(failure)}'
    status, output = _run(source, tmp_path)
    assert status == 1
    assert ("[rank: 0] ValueError: no." in output) == ("rank(0)" in failure)


@pytest.mark.slow
def test_a_failure_that_was_made_good_ends_nobody(tmp_path: Path) -> None:
    status, output = _run(
        """
        processes.start([other("time.sleep(3); print('done')")])
        try:
            with processes.rank(0):
                raise ValueError("no")
        except ValueError:
            with processes.rank(0):
                pass
        """,
        tmp_path,
    )
    assert status == 0
    assert "done" in output


@pytest.mark.slow
def test_the_others_end_when_the_first_is_killed(tmp_path: Path) -> None:
    """Not those that they have started for something else, before they watch or after."""
    watch = "processes.watch_parent(); " + LIVE
    source = f"""
    import os
    with processes.as_parent():
        started = other({watch!r})
    assert processes.PARENT not in os.environ
    processes.start([started])
    while True:
        time.sleep(1)
    """
    with _start(source, tmp_path) as run:
        while "here" not in run.output:
            assert run.process.poll() is None, run.output
        run.process.kill()
        run.wait_for_all_to_end(10)
        assert "ends because the process that started it died" in run.output


def test_a_process_that_a_rank_has_started_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(processes.PARENT, str(os.getpid()))
    processes.watch_parent()
    assert processes.PARENT not in os.environ
    assert "parent-watch" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no such file.\nMore of it.", "ValueError: no such file"),
        ("", "ValueError: (it says nothing)"),
        (
            "Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call "
            "last):\n  File ...\nKeyError: 'label'\n",
            "ValueError: Caught KeyError in DataLoader worker process 0: KeyError: 'label'",
        ),
    ],
)
def test_an_error_in_one_line(text: str, expected: str) -> None:
    assert exit_status.in_one_line(ValueError(text)) == expected
