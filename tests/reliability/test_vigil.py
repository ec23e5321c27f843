"""The process that watches for the ranks of a host ends with them."""

from __future__ import annotations

import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from lightning_gaudi.reliability import vigil
from lightning_gaudi.reliability.stacks import Process
from lightning_gaudi.reliability.verdict import Limits


def test_it_ends_when_the_ranks_and_their_store_are_gone_before_it_has_begun() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with socket.socket() as nobody:  # bound, and listening to nobody
        nobody.bind(("127.0.0.1", 0))
        board: Any = SimpleNamespace(address=nobody.getsockname(), name="of a run that is over")
        rank = Process("a host", ended.pid, 1, "no stack", "no page")
        vigil.start(board, {0: rank}, 2, Limits(10.0, 10.0))
        assert vigil._started[-1].wait(60) == 0  # torch would look for 300 s
