"""What one process of a host sees of the ranks: by what they say, and beside it from outside."""

from __future__ import annotations

import time
from collections.abc import Mapping

from lightning_gaudi._core.whereabouts import Page

from . import stacks
from .stacks import Process
from .verdict import RUNS, Beat

PATIENCE_S = 2.0
"""After how long without a sign of it a rank counts as silent, or as one that runs no Python."""

_SAVED_S = 0.25


def mark(state: str, board: str) -> str:
    """Returns what a rank that is watched writes on its page.

    Args:
        state: Of `verdict`.
        board: The name of the boards: a process may be watched several times.
    """
    return f"{state}:{board[:8]}"


class Lookout:
    """Sees the ranks of this host on their pages, which they keep while they let no Python run.

    Args:
        local: The processes of the ranks of this host, but for the one that looks.
        board: The name of the boards.
    """

    def __init__(self, local: Mapping[int, Process], board: str) -> None:
        self.local = local
        self._board = board
        self._numbers = dict.fromkeys(local, 0)
        self._seen: dict[int, Beat] = {}
        self._looked_at = 0.0

    def without_python(self) -> dict[int, Beat]:
        """Returns where the ranks of this host are that live, are watched and run no Python."""
        now = time.monotonic()
        if now - self._looked_at > _SAVED_S:
            self._looked_at = now
            found = {rank: self._look(rank, process, now) for rank, process in self.local.items()}
            self._seen = {rank: beat for rank, beat in found.items() if beat is not None}
        return self._seen

    def watched(self) -> list[int]:
        """Returns the ranks of this host that live and are still watched."""
        return [rank for rank, each in self.local.items() if self._is_watched(each)]

    def _is_watched(self, process: Process) -> bool:
        if stacks.how(process) not in (None, "is stopped"):
            return False
        found = Page.read(process.page)
        return found is None or found[2] == mark(RUNS, self._board)

    def _look(self, rank: int, process: Process, now: float) -> Beat | None:
        if stacks.how(process) is not None or (found := Page.read(process.page)) is None:
            return None
        note, ticked_at, state = found
        if now - ticked_at < PATIENCE_S or state != mark(RUNS, self._board):
            return None
        self._numbers[rank] += 1
        return Beat(
            # Above those that it counts itself, so that others see a new one each time.
            2**40 + self._numbers[rank],
            RUNS,
            note.step,
            note.place,
            note.is_training,
            note.position,
            note.collective,
            note.last_collective,
            max(0.0, now - note.since),
            runs_python=False,
        )

    def see(
        self, beats: Mapping[int, tuple[Beat, float]]
    ) -> tuple[dict[int, Beat], dict[int, float]]:
        """Returns the last heartbeat of each rank, and for how long it has been silent since.

        Args:
            beats: What the board has brought.
        """
        now, seen = time.monotonic(), self.without_python()
        found = {rank: beat for rank, (beat, _) in [*beats.items()]} | seen
        silent_s = {rank: now - at for rank, (_, at) in [*beats.items()]} | dict.fromkeys(seen, 0.0)
        return found, {rank: s if s > PATIENCE_S else 0.0 for rank, s in silent_s.items()}

    def stack_of(self, rank: int) -> str:
        """Returns the Python stack of a rank of this host, taken from outside; "" if none."""
        process = self.local.get(rank)
        return "" if process is None else stacks.of_other(process)
