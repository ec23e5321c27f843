"""No process aborts at its end, however soon after its first backward it comes."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.helpers.process import environment

_NUM_PROCESSES = 50
_SOURCE = """
import torch
x = torch.ones(2, 2, device="hpu", requires_grad=True)
(x @ x).sum().backward()
"""


def _run(index):
    return subprocess.run(
        [sys.executable, "-c", _SOURCE],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_short_processes_exit_cleanly():
    with ThreadPoolExecutor(max_workers=4) as pool:
        results = list(pool.map(_run, range(_NUM_PROCESSES)))
    assert [(r.returncode, r.stderr) for r in results] == [(0, "")] * _NUM_PROCESSES
