"""Defines what is known of a rank (`Beat`), and the memory that it shares (`Board`).

A rank shares the memory with the process that watches it. It belongs to no file, and others open it
through `/proc`, which the kernel allows to nobody but the same user. So no other tenant of the
machine can read or write it. What a rank notes (`_core.progress`) can be read there while the rank
runs no Python.

Its layout is: where the rank is; numbers (`_NUMBERS`); an order of the watching process; what that
process has said of slow ranks; a stack.
"""

from __future__ import annotations

import math
import os
import signal
import struct
import time
from mmap import ACCESS_READ, ACCESS_WRITE, mmap
from pathlib import Path
from typing import Any, NamedTuple

from lightning_gaudi._core import progress
from lightning_gaudi.untrusted import printable

RUNS, LEFT, FAILED = "runs", "left", "failed"

STOPPED = "is stopped"
"""The word for a process that a signal has stopped."""

SILENT_S = 5.0
"""The seconds without a sign of life after which a rank is called silent."""

MAX_TEXT = 400
"""The most characters of a text in a heartbeat."""

SURVIVED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are sent to all processes of a program, and that the watching one ignores."""


class Beat(NamedTuple):
    """Says what is known of a rank at a moment."""

    number: int
    """Counts the heartbeats of this rank."""
    state: str
    """`RUNS`, `LEFT` (its program ended) or `FAILED` (with an error)."""
    step: int
    place: str
    is_training: bool
    position: tuple[int, int]
    collective: str | None
    last_collective: str | None
    still_s: float
    """How many seconds it has been in this place, by its own clock."""
    mute_s: float = 0.0
    """How many seconds it has run no Python."""
    ended: str | None = None
    """How its process has ended without saying so, or `STOPPED`; None while it runs."""
    call: str | None = None
    """The innermost call of Python in its main thread; None if its stack was not taken."""
    waits: bool = False
    """Whether that is a call that waits for the card, or works for it."""
    is_busy: bool = False
    """Whether it compiles, or computes within a call for the card."""
    is_in_python: bool = False
    """Whether that call is one of Python's own or the user's, and Python goes on beside it."""
    pace: tuple[float, float] = (0.0, 0.0)
    """See `progress.Whereabouts.pace`."""

    @classmethod
    def read(cls, values: Any) -> Beat:
        """Returns the heartbeat of a message, from what JSON has made of it.

        Raises:
            ValueError: A value is missing, or has another type or size than it may have.
        """
        if not isinstance(values, list) or len(values) != len(cls._fields):
            raise ValueError(f"A heartbeat has {len(cls._fields)} values.")
        position = values[cls._fields.index("position")]
        if not isinstance(position, list):
            raise ValueError("The position in a heartbeat is a pair of numbers.")
        pace = values[cls._fields.index("pace")]
        if not isinstance(pace, list) or len(pace) != 2:
            raise ValueError("The pace in a heartbeat is a pair of numbers.")
        beat = cls(*values)._replace(position=tuple(position), pace=tuple(pace))
        _check_types(beat)
        return beat

    @property
    def is_dead(self) -> bool:
        """Whether its process has ended without saying so."""
        return self.state == RUNS and self.ended not in (None, STOPPED)


def _check_types(beat: Beat) -> None:
    texts = (beat.place, beat.collective, beat.last_collective, beat.ended, beat.call)
    whole = (beat.number, beat.step, *beat.position)
    switches = (beat.is_training, beat.waits, beat.is_busy, beat.is_in_python)
    if (
        beat.state not in (RUNS, LEFT, FAILED)
        or not isinstance(beat.place, str)
        or len(beat.position) != 2
        or not all(isinstance(each, bool) for each in switches)
        or not all(type(each) is int and abs(each) < 2**63 for each in whole)
        or not all(each is None or isinstance(each, str) for each in texts)
        or any(len(each or "") > MAX_TEXT for each in texts)
    ):
        raise ValueError("A heartbeat has a value of another type or size.")
    for seconds in (beat.still_s, beat.mute_s, *beat.pace):
        if type(seconds) not in (int, float) or not (0 <= seconds < 2**63):
            raise ValueError("A heartbeat has a time that is none.")


class Limits(NamedTuple):
    """Says how many seconds a rank may stand still while others wait."""

    training_s: float
    other_s: float
    slow_factor: float = 0.0
    """A rank is slow that takes so many times as long as the others; 0 compares none."""
    slow_s: float = 60.0
    """How many seconds a rank must be slow to be named."""


def where(beat: Beat) -> str:
    """Returns where a rank stands, in a few words."""
    place = f"the collective {beat.collective}" if beat.collective else beat.place
    last = beat.last_collective or "none"
    return printable(f"step {beat.step}, {place} (last collective: {last})", max_chars=MAX_TEXT)


_NUMBERS = progress.RECORD_BYTES
_ORDER = 1024
_NEWS = 16 * 1024
_STACK = 32 * 1024
BOARD_BYTES = 64 * 1024

_DOUBLE, _COUNT = struct.Struct("<d"), struct.Struct("<I")
_PYTHON_AT, *_LIMITS = (_NUMBERS + 8 * place for place in range(1 + len(Limits._fields)))
_COUNTS = _NUMBERS + 8 * (1 + len(Limits._fields))
_STATE, _HAS_READ, _MAY_END, _WANTED, _GIVEN = (_COUNTS + 4 * place for place in range(5))

_STATES = (RUNS, LEFT, FAILED)


class Board:
    """The memory of one rank, opened by that rank or by another process on its host."""

    def __init__(self, memory: mmap, path: str) -> None:
        self.memory = memory
        self.path = path
        """The path at which other processes of this user open it on this host."""

    @classmethod
    def new(cls, limits: Limits) -> Board:
        """Makes this rank's own board."""
        file = os.memfd_create("lightning-gaudi-board")
        os.ftruncate(file, BOARD_BYTES)
        board = cls(mmap(file, BOARD_BYTES), f"/proc/{os.getpid()}/fd/{file}")
        board.limits = limits
        board.note_python()
        return board

    @classmethod
    def opened(cls, path: str, *, writes: bool = False) -> Board:
        """Opens another rank's board.

        Raises:
            OSError: The rank has ended.
        """
        access = ACCESS_WRITE if writes else ACCESS_READ
        with Path(path).open("r+b" if writes else "rb") as file:
            return cls(mmap(file.fileno(), BOARD_BYTES, access=access), path)

    def _count(self, place: int) -> int:
        return int(_COUNT.unpack_from(self.memory, place)[0])

    def _set_count(self, place: int, value: int) -> None:
        _COUNT.pack_into(self.memory, place, value)

    def _double(self, place: int) -> float:
        (value,) = _DOUBLE.unpack_from(self.memory, place)
        return value if math.isfinite(value) else 0.0

    @property
    def state(self) -> str:
        """`RUNS`, `LEFT` or `FAILED`."""
        return _STATES[min(self._count(_STATE), len(_STATES) - 1)]

    @state.setter
    def state(self, value: str) -> None:
        self._set_count(_STATE, _STATES.index(value))

    @property
    def limits(self) -> Limits:
        """The limits that this rank has set."""
        return Limits(*map(self._double, _LIMITS))

    @limits.setter
    def limits(self, value: Limits) -> None:
        for place, seconds in zip(_LIMITS, value, strict=True):
            _DOUBLE.pack_into(self.memory, place, seconds)

    def note_python(self) -> None:
        """Notes that the rank runs Python; a thread of the rank calls it."""
        _DOUBLE.pack_into(self.memory, _PYTHON_AT, time.monotonic())

    @property
    def python_at(self) -> float:
        """When the rank last ran Python, in seconds of `time.monotonic`."""
        return self._double(_PYTHON_AT)

    @property
    def order(self) -> str:
        """Why the rank is to end; "" while it need not."""
        return self._text(_ORDER, _NEWS)

    @order.setter
    def order(self, reason: str) -> None:
        self._set_text(_ORDER, _NEWS, reason)

    @property
    def news(self) -> list[str]:
        """The last things that the watching process has said of slow ranks; on rank 0."""
        return self._text(_NEWS, _STACK).splitlines()

    @news.setter
    def news(self, lines: list[str]) -> None:
        self._set_text(_NEWS, _STACK, "\n".join(lines))

    @property
    def has_read(self) -> bool:
        """Whether the rank has said why it ends."""
        return bool(self._count(_HAS_READ))

    def note_read(self) -> None:
        """Notes that the rank has said why it ends."""
        self._set_count(_HAS_READ, 1)

    @property
    def may_end(self) -> bool:
        """Whether all ranks of the host have said why they end, so that this one may do so."""
        return bool(self._count(_MAY_END))

    def let_end(self) -> None:
        """Lets the rank end."""
        self._set_count(_MAY_END, 1)

    def ask_for_stack(self) -> int:
        """Asks the rank's own thread for the stack of its main thread.

        Returns:
            The number of the question, for `stack`.
        """
        number = self._count(_WANTED) + 1
        self._set_count(_WANTED, number)
        return number

    def stack(self, number: int) -> str:
        """Returns the answer to a question; "" while there is none."""
        return self._text(_STACK, BOARD_BYTES) if self._count(_GIVEN) >= number else ""

    @property
    def is_stack_wanted(self) -> bool:
        """Whether a question waits for an answer."""
        return self._count(_WANTED) != self._count(_GIVEN)

    def give_stack(self, stack: str) -> None:
        """Answers all questions so far."""
        number = self._count(_WANTED)
        self._set_text(_STACK, BOARD_BYTES, stack)
        self._set_count(_GIVEN, number)

    def _text(self, begin: int, end: int) -> str:
        length = min(self._count(begin), end - begin - _COUNT.size)
        begin += _COUNT.size
        return self.memory[begin : begin + length].decode(errors="replace")

    def _set_text(self, begin: int, end: int, text: str) -> None:
        """Writes a text, and its length last, so that a reader sees no length without its text."""
        data = text.encode(errors="replace")[: end - begin - _COUNT.size]
        self._set_count(begin, 0)
        self.memory[begin + _COUNT.size : begin + _COUNT.size + len(data)] = data
        self._set_count(begin, len(data))
