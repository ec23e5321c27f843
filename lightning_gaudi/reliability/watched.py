"""`WatchedRank` is a rank as the watching process of its host sees it, from outside.

Nothing here needs the rank to run Python. If the rank does run Python, a thread of its own gives
its stack. Otherwise the handler of a signal in C writes it, which interrupts the main thread for a
moment. So a rank is asked only when it has stood still for long.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque

from lightning_gaudi._core import progress
from lightning_gaudi._core.processes.rank_monitor import STOPPED as STOPPED_STATUS

from . import stacks
from .heartbeat_store import LEFT, MAX_TEXT, RUNS, SILENT_S, STOPPED, Beat, Board
from .stacks import Process, Question

_ASK_AFTER = 0.6
"""The part of its limit after which a rank that stands still is asked for its stack."""

_ASK_AGAIN_S = 2.0
_ANSWER_S = 2.0
_MUTE_S = 1.5
_SAMPLE_S = 1.0
_BUSY = 0.5
"""How many processors a rank must use in a call for its card to count as computing there."""

_EXPECTED = tuple(f"ended with exit status {status}" for status in (0, STOPPED_STATUS))


class WatchedRank:
    """One rank of this host.

    Args:
        process: The process of the rank.

    Raises:
        OSError: The process has ended.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self.board = Board.opened(process.board, writes=True)
        self.stack = ""
        """The last stack that was taken; "" once the rank has moved since."""
        self._since = time.monotonic()
        self._here = progress.read(self.board.memory) or progress.untold()
        self._call: stacks.Call | None = None
        self._asked_at = 0.0
        self._question: Question | None = None
        self._number: int | None = None
        self._cpu: deque[tuple[float, float]] = deque(maxlen=4)
        self._num_beats = 0

    def forgive(self) -> None:
        """Starts to count anew how long the rank stands still.

        It is called when this process itself was stopped for a while, and saw nothing.
        """
        self._since = time.monotonic()

    def mute_s(self) -> float:
        """Returns for how many seconds the rank has run no Python."""
        return max(0.0, time.monotonic() - max(self.board.python_at, self._since))

    def beat(self) -> Beat:
        """Returns what is known of the rank now."""
        here = progress.read(self.board.memory) or self._here
        if here != self._here:
            self._here, self._call, self.stack = here, None, ""
            self._cpu.clear()
        self._num_beats += 1
        mute_s, how = self.mute_s(), stacks.how(self.process)
        # A program that ends by `os._exit` has no time to say that it leaves.
        state = LEFT if self.board.state == RUNS and how in _EXPECTED else self.board.state
        call = self._call
        return Beat(
            self._num_beats,
            state,
            here.step,
            here.place,
            here.is_training,
            here.position,
            here.collective,
            here.last_collective,
            max(0.0, time.monotonic() - max(here.since, self._since)),
            mute_s,
            how if how in (None, STOPPED) else f"(process {self.process.pid}) {how}",
            None if call is None else call.name[:MAX_TEXT],
            call is not None and call.waits,
            call is not None and (call.compiles or (call.waits and self._computes())),
            call is not None and call.is_known and mute_s < SILENT_S,
            here.pace,
        )

    def _computes(self) -> bool:
        if not self._cpu:
            return False
        (begin, before), (end, after) = self._cpu[0], self._cpu[-1]
        return end > begin and after - before > _BUSY * (end - begin)

    def look(self, beat: Beat) -> None:
        """Asks a rank that has stood still for long for its stack, and reads the answer."""
        limits = self.board.limits
        limit = limits.training_s if beat.is_training else limits.other_s
        if beat.still_s < _ASK_AFTER * limit or beat.collective or not self.is_there(beat):
            return
        if not self._cpu or time.monotonic() - self._cpu[-1][0] > _SAMPLE_S:
            self._cpu.append((time.monotonic(), stacks.busy_s(self.process)))
        if self._number is None and self._question is None:
            if time.monotonic() - self._asked_at > _ASK_AGAIN_S:
                self.ask()
        else:
            self.read_answer()

    def is_there(self, beat: Beat) -> bool:
        """Returns whether the rank can be asked without being woken."""
        return beat.state == RUNS and beat.ended is None

    def ask(self, *, wakes: bool = False) -> None:
        """Asks the rank for its stack.

        Args:
            wakes: Whether to continue a rank that is stopped.
        """
        self.forget_question()
        self._asked_at = time.monotonic()
        if wakes or self.mute_s() > _MUTE_S:
            self._question = Question(self.process, wakes=wakes)
        else:
            self._number = self.board.ask_for_stack()

    def read_answer(self) -> bool:
        """Returns whether the rank has answered, and keeps the answer."""
        found = ""
        if self._question is not None:
            found = self._question.answer()
        elif self._number is not None:
            found = self.board.stack(self._number)
        if found:
            self.stack, self._call = found, stacks.call(found)
            self.forget_question()
            return True
        if time.monotonic() - self._asked_at > _ANSWER_S:
            self.forget_question()
        elif self._number is not None and self.mute_s() > _MUTE_S:
            self.ask()  # by a signal now, since the thread that was asked does not run
        return False

    def forget_question(self) -> None:
        """Gives up waiting for an answer."""
        if self._question is not None:
            self._question.close()
        self._question = self._number = None

    def has_ended(self) -> bool:
        """Returns whether the rank's process has ended."""
        return stacks.how(self.process) not in (None, STOPPED)

    def kill(self) -> None:
        """Kills the rank's process, unless it has ended."""
        if not self.has_ended():
            with contextlib.suppress(OSError):
                os.kill(self.process.pid, signal.SIGKILL)
