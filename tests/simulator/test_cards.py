"""A card is one process's at a time; processes of one simulated server share its cards."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_gaudi.simulator import settings
from tests.helpers.forked import fork_python
from tests.helpers.process import environment, run_python

_TOUCH = "import torch; torch.ones(1, device='hpu'); print('has a card', flush=True)"
_HOLD = f"{_TOUCH}; import sys; sys.stdin.read()"


def _env(
    num_cards: int = 2, server: str | None = "shared", **changes: str
) -> dict[str, str | None]:
    cards = {"LIGHTNING_GAUDI_SIMULATE": str(num_cards), **changes}
    # A name of this process's own: the suite may run twice on a machine.
    name = server and f"{server}-{os.getpid()}"
    return {**cards, "LIGHTNING_GAUDI_SIMULATE_SERVER": name}


@contextlib.contextmanager
def _holder(**settings: str | int | None) -> Iterator[subprocess.Popen[str]]:
    """A process that has a card, until it ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD],
        env=environment(_env(**settings)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "has a card\n"
            yield process
        finally:
            process.kill()


def _touch(**settings: str | int | None) -> str:
    """What a process says that touches a card."""
    result = fork_python(_TOUCH, env=_env(**settings), check=False)
    return result.stdout + result.stderr


def test_a_module_is_one_process_s_until_it_is_killed():
    with _holder(HLS_MODULE_ID="0") as holder:
        refused = _touch(HLS_MODULE_ID="0")
        assert "RuntimeError: Device acquire failed (a Gaudi says synStatus=8)" in refused
        assert f"HLS_MODULE_ID names a card that is taken: module 0 by process {holder.pid}." in (
            refused
        )
        assert "set LIGHTNING_GAUDI_SIMULATE_SERVER to a name of this run's own" in refused
        assert _touch(HLS_MODULE_ID="1") == "has a card\n"
        assert "has a card" in _touch()  # module 1, which is free
        assert "has a card" in _touch(HLS_MODULE_ID="0", server="another")
        assert "has a card" in _touch(HLS_MODULE_ID="0", server=None)  # a run of its own
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        assert _touch(HLS_MODULE_ID="0") == "has a card\n"


@pytest.mark.slow
def test_processes_without_a_module_get_the_cards_that_are_free():
    with _holder() as first, _holder(HLS_MODULE_ID="0") as second:  # the first took the last card
        refused = _touch()
    assert "all cards of the simulated server are taken: " in refused
    assert f"module 1 by process {first.pid}, module 0 by process {second.pid}." in refused
    assert "simulate more cards by LIGHTNING_GAUDI_SIMULATE" in refused


@pytest.mark.slow
def test_visible_modules_are_all_there_are():
    with _holder(HABANA_VISIBLE_MODULES="4,6") as first:
        assert "has a card" in _touch(HABANA_VISIBLE_MODULES="4,6")
        assert f"module 6 by process {first.pid}" in _touch(HABANA_VISIBLE_MODULES="6")
    for changes, what in (
        ({"HABANA_VISIBLE_MODULES": "4,6", "HLS_MODULE_ID": "0"}, "shows this process 4, 6. Set"),
        ({"HLS_MODULE_ID": "2"}, "HLS_MODULE_ID=2 is no module of the simulated server, which"),
        ({"HLS_MODULE_ID": "first"}, "HLS_MODULE_ID=first is no module of the simulated server"),
        ({"HABANA_VISIBLE_MODULES": "all"}, "HABANA_VISIBLE_MODULES=all is no list of modules"),
    ):
        assert what in _touch(**changes), changes


def test_a_command_gets_a_server_of_its_own_unless_one_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_a_notebook = fork_python(
        """
        from lightning_gaudi.simulator.settings import server_name
        print(server_name(), end="")
        """,
        env={settings.SERVER: None},
    ).stdout
    for inherited, is_kept in ((of_a_notebook, False), ("mine", True)):
        monkeypatch.setenv(settings.SERVER, inherited)
        assert (settings.name_of_new_server() == inherited) is is_kept, inherited


@pytest.mark.slow
def test_what_a_process_starts_shares_its_server():
    source = f"""
        import os, subprocess, sys, torch  # a launcher: it touches no card
        print(os.environ["LIGHTNING_GAUDI_SIMULATE_SERVER"])
        touch = [sys.executable, "-c", {_HOLD!r}]
        rank = subprocess.Popen(touch, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        print(rank.stdout.readline())
        refused = subprocess.run(touch, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        print(f"module 0 by process {{rank.pid}}" in refused.stderr)
        rank.communicate()
    """
    name, card, refused = run_python(
        source, env={**_env(1, server=None), "HLS_MODULE_ID": "0"}
    ).stdout.split("\n", 2)
    assert name.split("-")[0].isdigit()
    assert "has a card" in card
    assert refused.strip().endswith("True")


def test_a_forked_process_holds_no_card_of_its_parent(tmp_path):
    child = tmp_path / "child"
    source = f"""
        import os, pathlib, signal, time, torch
        torch.ones(1, device="hpu")
        if (child := os.fork()) == 0:
            time.sleep(60)
            os._exit(0)
        pathlib.Path({str(child)!r}).write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = fork_python(source, env=_env(1), check=False)
    try:
        assert killed.returncode == -signal.SIGKILL
        assert _touch(num_cards=1) == "has a card\n"
    finally:
        os.kill(int(child.read_text()), signal.SIGKILL)


@pytest.mark.slow
def test_a_refused_process_may_try_again():
    source = """
        import os, signal, sys, time, torch
        for attempt in range(1000):
            try:
                torch.ones(1, device="hpu")
                break
            except RuntimeError as error:
                assert f"module 0 by process {sys.argv[1]}." in str(error)
                os.kill(int(sys.argv[1]), signal.SIGKILL)
                time.sleep(0.01)
        print(attempt > 0)
    """
    with _holder(num_cards=1) as holder:
        assert fork_python(source, str(holder.pid), env=_env(1)).stdout == "True\n"


def test_a_folder_for_the_locks_is_needed(tmp_path):
    missing = str(tmp_path / "missing")
    changes = {"XDG_RUNTIME_DIR": missing, "TMPDIR": missing}
    assert "has a card" in _touch(**changes)  # in /tmp
    assert not Path(missing).exists()


@pytest.mark.slow
def test_the_first_touch_is_quick():
    source = """
        import time, torch
        start = time.perf_counter()
        tensor = torch.empty(1, device="hpu")
        print(time.perf_counter() - start)
    """
    times = [float(fork_python(source, env=_env(1)).stdout) for _ in range(3)]
    assert min(times) < 0.01
