"""How workers of DataLoaders end: with their program, and not without a word."""

from __future__ import annotations

import os
import re
import socket
import tempfile
import time
from pathlib import Path

import pytest

from lightning_gaudi._core import processes
from lightning_gaudi._core.workers import start as worker_start
from tests.helpers.forked import fork_python
from tests.helpers.process import is_running

_LIMIT_S = 30
"""By when the last process has ended: torch's workers look for their parent every 5 s."""

_SCRIPT = """
import contextlib, os, signal, sys, tempfile
tempfile.tempdir = os.environ["TMPDIR"] = sys.argv[2]
import lightning.pytorch as pl
from torch.utils.data import DataLoader
from tests.helpers.tiny import QUIET
from lightning_gaudi._core.workers.server import SURVIVED
from tests.strategies.worker_cases import Ending, Failing, server

def fail(workers):
    raise ArithmeticError("the step fails")

def stray(workers):
    for pid in (server(), *workers):
        for number in SURVIVED:
            with contextlib.suppress(ProcessLookupError):  # a worker of the epoch before
                os.kill(pid, number)

case = sys.argv[1]
act = {
    "SIGINT": lambda workers: os.kill(os.getpid(), signal.SIGINT),
    "SIGINT to all": lambda workers: os.killpg(0, signal.SIGINT),
    "SIGTERM": lambda workers: os.kill(os.getpid(), signal.SIGTERM),
    "SIGTERM to all": lambda workers: os.killpg(0, signal.SIGTERM),
    "SIGKILL": lambda workers: os.kill(os.getpid(), signal.SIGKILL),
    "stray": stray,
    "step": fail,
    "row": lambda workers: None,
    "worker": lambda workers: os.kill(workers[0], signal.SIGKILL),
    "end": lambda workers: None,
}[case]
os.setpgrp()  # as a shell starts a program
rows = Failing(9) if case == "row" else Failing()
trainer = pl.Trainer(accelerator="hpu", devices=1, max_epochs=3, **QUIET)
trainer.fit(Ending(act), DataLoader(rows, 2, num_workers=2))
"""


def _shared() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("torch_*")}


def _run(case: str) -> tuple[int, str]:
    """The exit status and what was said, once all processes are gone, and their files."""
    with tempfile.TemporaryDirectory() as folder:  # a short path: sockets lie there too
        found = _run_in(folder, case)
        # The simulated cards themselves stay, as real ones would, and what torch has compiled.
        kept = ("lightning-gaudi-cards-", "torchinductor_")
        left = [path for path in Path(folder).iterdir() if not path.name.startswith(kept)]
        assert not left, [*Path(folder).rglob("*")]
    return found


def _run_in(folder: str, case: str) -> tuple[int, str]:
    result = fork_python(_SCRIPT, case, folder, check=False)
    lines = [line.split() for line in result.stdout.splitlines()]
    pids = [int(pid) for line in lines if line[:1] == ["processes"] for pid in line[1:]]
    assert len(set(pids)) >= 3, result.stdout + result.stderr  # a server and two workers
    end = time.monotonic() + _LIMIT_S
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < end, f"{left} of {pids} are left"
        time.sleep(0.05)
    return result.returncode, result.stderr


@pytest.fixture(autouse=True)
def _nothing_is_left_in_shared_memory():
    before = _shared()
    yield
    assert _shared() <= before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "status"),
    # Lightning ends with 1 at Ctrl-C; a fit that SIGTERM ended says so.
    [
        *(("SIGINT", 1), ("SIGINT to all", 1)),
        *(("SIGTERM", 143), ("SIGTERM to all", 143)),
        ("SIGKILL", -9),
    ],
)
def test_a_signal_ends_all(case, status):
    found, said = _run(case)
    assert found == status
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.parametrize("case", ["end", "stray"])
def test_the_end_of_the_program_ends_all_and_signals_to_others_do_not(case):
    status, said = _run(case)
    assert status == 0, said
    assert "Traceback" not in said


@pytest.mark.slow
def test_an_error_in_a_step_ends_all():
    status, said = _run("step")
    assert status == 1
    assert said.count("ArithmeticError: the step fails") == 1


@pytest.mark.slow
def test_an_error_in_a_worker_comes_once_with_its_place():
    status, said = _run("row")
    assert status == 1
    assert said.count('raise LookupError(f"no row {index}")') == 1
    assert said.count("LookupError: no row 9") == 1
    assert "worker_cases.py" in said


@pytest.mark.slow
def test_a_worker_that_was_killed_is_an_error():
    status, said = _run("worker")
    assert status == 1
    # The second where torch was about to fetch a batch from it.
    assert re.search(r"DataLoader worker .* exited unexpectedly|Connection\w+Error", said)


_STARTING = """
import os, signal, sys
from lightning_gaudi._core.workers import start as worker_start
os.setpgrp()
signal.signal(signal.SIGINT, signal.SIG_IGN)
worker_start.start_server()
os.killpg(0, signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
from torch.utils.data import DataLoader
loader = DataLoader([1, 2], num_workers=1, multiprocessing_context=worker_start.WorkerContext())
first = worker_start._server._forkserver_pid
print(len(list(loader)), worker_start._server._forkserver_pid == first)
"""


@pytest.mark.slow
def test_ctrl_c_does_not_end_a_server_that_starts():
    assert fork_python(_STARTING).stdout.split() == ["2", "True"]


_KILLED_BEFORE_ITS_SERVER = """
import os, signal, sys, tempfile
from pathlib import Path
tempfile.tempdir = sys.argv[1]
from multiprocessing import resource_tracker, util
from lightning_gaudi._core.workers import start as worker_start

def kill(*_):
    for name in sys.argv[2:]:
        Path(util.get_temp_dir(), name).touch()
    os.kill(os.getpid(), signal.SIGKILL)

resource_tracker.ensure_running()
util.spawnv_passfds = kill
worker_start.start_server()
"""

_STARTS = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from lightning_gaudi._core.workers import start as worker_start
worker_start.start_server()
"""


def _folders(temporary):
    return sorted(temporary.glob("pymp-*"))


@pytest.mark.slow_but("files1")
@pytest.mark.parametrize("files", [[], ["modules-1.new", "listener-x"]])
def test_what_was_left_by_a_kill_before_there_was_a_server_is_removed_by_the_next(files):
    with tempfile.TemporaryDirectory() as folder:  # a short path: sockets lie there too
        temporary = Path(folder)
        assert fork_python(_KILLED_BEFORE_ITS_SERVER, folder, *files, check=False).returncode == -9
        (left,) = _folders(temporary)
        fork_python(_STARTS, folder)
        assert not left.exists()


def _made_folder(temporary, owners):
    folder = temporary / "pymp-other"
    folder.mkdir(parents=True)
    for number, owner in enumerate(owners):
        (folder / f"modules-{number}.owner").symlink_to(owner)
    return folder


def _dead(**changes):
    parts = {"host": processes.host(), "pid": os.getpid(), "started": 1, **changes}
    return " ".join(str(part) for part in parts.values())


@pytest.mark.parametrize(
    "owners",
    [
        [],
        [processes.describe(os.getpid())],
        [_dead(), processes.describe(os.getpid())],
        [_dead(host="another pid:[1]")],
        ["/etc"],
        [f"{processes.host()} x y"],
    ],
    ids=["unknown", "living", "one of two living", "another host's", "no process", "no number"],
)
def test_what_others_may_have_is_left(tmp_path, owners):
    folder = _made_folder(tmp_path, owners)
    worker_start._remove_left(tmp_path)
    assert folder.exists()


def test_what_only_the_dead_had_is_removed_unless_a_socket_of_it_is_in_use():
    with tempfile.TemporaryDirectory() as temporary, socket.socket(socket.AF_UNIX) as server:
        folder = _made_folder(Path(temporary), [_dead(), _dead(pid=2**30)])
        server.bind(os.fsencode(folder) + b"/listener-\xff")
        worker_start._remove_left(Path(temporary))
        assert folder.exists()
        server.close()
        worker_start._remove_left(Path(temporary))
        assert not folder.exists()


def test_a_link_of_somebody_elses_is_not_followed(tmp_path):
    precious = _made_folder(tmp_path / "elsewhere", [_dead()])
    (tmp_path / "pymp-link").symlink_to(precious)
    worker_start._remove_left(tmp_path)
    assert (precious / "modules-0.owner").is_symlink()
