"""The vigil: a process that watches for the ranks of a host while none of them runs Python.

One for each host, started once a run has taken longer than a moment, without the card: it reads
where the ranks are on their pages, says so to the other hosts, judges where rank 0 cannot, and ends
the ranks of its host when all are to end. It ends when the last of them has ended or left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any

from lightning_gaudi._core.rank_monitor import say

from . import stacks
from .board import Board, connect
from .lookout import Lookout
from .stacks import Process
from .verdict import Beat, Limits, Verdict, judge, where_all_stand

AFTER_S = 5.0
"""When it is started: it takes three seconds of one core, which a short run need not spend."""

MAX_STACKS = 8
"""Of how many ranks the stacks are shown."""

_POLL_S = 0.25
_STACKS_S = 3.0

_PROGRAM = """\
import sys
sys.path[:] = sys.argv[1:]
from lightning_gaudi.reliability import vigil
vigil.main()
"""

_started: list[Any] = []
"""Kept, for Python complains of a process that nobody waits for."""


def start(board: Board, local: Mapping[int, Process], num_ranks: int, found: Limits) -> None:
    """Starts it, where the store is one that another process can ask.

    Args:
        board: Of a rank of this host.
        local: The processes of all ranks of this host.
        num_ranks: How many ranks there are.
        found: How long they may stand still.
    """
    if board.address is None:
        return
    told = {
        "address": board.address,
        "board": board.name,
        "local": [[rank, *process] for rank, process in sorted(local.items())],
        "num_ranks": num_ranks,
        "limits": found,
    }
    # It shall load neither the vendor's package nor its stand-in.
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "LIGHTNING_GAUDI_AUTOLOAD": "0"}
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *filter(None, sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=env,
    )
    _started.append(process)
    assert process.stdin is not None
    process.stdin.write(json.dumps(told).encode())
    process.stdin.close()


def main() -> None:
    """Keeps watch, as standard input says."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # sent to all processes of the program
    os.nice(5)
    told = json.load(sys.stdin)
    local = {rank: Process(*fields) for rank, *fields in told["local"]}
    has_store = threading.Event()
    threading.Thread(target=_end_after, args=(local.values(), has_store), daemon=True).start()
    place, port = told["address"]
    board = Board(connect((place, port)), told["board"], None, told["num_ranks"])
    has_store.set()
    Vigil(board, local, told["num_ranks"], Limits(*told["limits"])).run()
    os._exit(0)


def _end_after(processes: Collection[Process], has_store: threading.Event) -> None:
    """Ends this process soon after the ranks of its host, whatever it waits for.

    The store may have ended with them before this process has found it, and torch looks for it on
    and on then.

    Args:
        processes: Those of the ranks.
        has_store: Set once the store has been found: then it ends by itself, as a rule.
    """
    while any(stacks.how(process) in (None, "is stopped") for process in processes):
        time.sleep(_POLL_S)
    if has_store.is_set():
        time.sleep(2 * _STACKS_S)
    os._exit(0)


class Vigil:
    """See the module.

    Args:
        board: Of no rank.
        local: The processes of the ranks of this host.
        num_ranks: How many ranks there are.
        found: How long they may stand still.
    """

    def __init__(
        self, board: Board, local: Mapping[int, Process], num_ranks: int, found: Limits
    ) -> None:
        self._board, self._local, self._num_ranks = board, local, num_ranks
        self._limits = found
        self._lookout = Lookout(local, board.name)

    def run(self) -> None:
        """Keeps watch until all ranks of this host have ended or left, or are to end."""
        self._board.start(self._vouch, range(self._num_ranks))
        has_judged = False
        while self._lookout.watched():
            if self._board.verdict is not None:
                self._end(*self._board.verdict)
                return
            if not has_judged and (found := self._judge()) is not None:
                has_judged = True
                wanted = [*(found.ranks or range(self._num_ranks))][:MAX_STACKS]
                self._board.propose({**found._asdict(), "stacks": wanted})
            time.sleep(_POLL_S)

    def _vouch(self) -> dict[int, Beat]:
        """Returns what the ranks cannot say that run no Python."""
        return self._lookout.without_python()

    def _judge(self) -> Verdict | None:
        """Judges all, where rank 0 is of this host and no rank of it can."""
        unable = self._lookout.without_python()
        is_single = len(self._local) == self._num_ranks
        if 0 not in unable or (is_single and len(unable) < len(self._lookout.watched())):
            return None
        beats, silent_s = self._lookout.see(self._board.beats)
        if (found := judge(beats, silent_s, self._limits)) is None:
            return None
        return found._replace(stood=where_all_stand(beats, silent_s, self._num_ranks))

    def _end(self, verdict: Verdict, wanted: list[int]) -> None:
        """Ends the ranks of this host, where none of them can."""
        unable = {*self._lookout.without_python()}
        for rank in sorted({*wanted} & unable):
            if stack := self._lookout.stack_of(rank):
                self._board.stacks[rank] = stack
                self._board.tell_stack(rank, stack)
        if {*self._lookout.watched()} - unable:
            return  # those that run Python say so, and end the others
        time.sleep(_STACKS_S / 2)  # for the stacks of other hosts
        for rank in wanted:
            stack = self._board.stacks.get(rank, "").rstrip() or "  not to be had"
            say(f"the Python stack of rank {rank}:\n{stack}\n")
        for rank, process in self._local.items():
            say(f"[rank: {rank}] ends: {verdict.reason}")
            stacks.kill(process)
        say(f"where all stood: {verdict.stood or 'not known'}")
        self._board.close(_STACKS_S)
