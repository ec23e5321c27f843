"""`Board`: memory that a rank shares with the process that watches it, and how each finds it.

It belongs to no file. Whoever opens it does so through `/proc`, which the kernel allows to the same
user and to nobody else; so no other tenant of the machine reads or writes it. What a rank notes
(`_core.progress`) is read there while that rank lets no Python run.

Layout: where the rank is; numbers (`_NUMBERS`); an order of the watching process's; what that has
said of slow ranks; a stack.
"""

from __future__ import annotations

import math
import os
import struct
import time
from mmap import ACCESS_READ, ACCESS_WRITE, mmap
from pathlib import Path

from lightning_gaudi._core import progress

from .hang_detection import FAILED, LEFT, RUNS, Limits

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
    """The memory of one rank, as that rank or as another process on its host has it."""

    def __init__(self, memory: mmap, path: str) -> None:
        self.memory = memory
        self.path = path
        """Where other processes of this user and host open it."""

    @classmethod
    def new(cls, limits: Limits) -> Board:
        """Makes this rank's own."""
        file = os.memfd_create("lightning-gaudi-board")
        os.ftruncate(file, BOARD_BYTES)
        board = cls(mmap(file, BOARD_BYTES), f"/proc/{os.getpid()}/fd/{file}")
        board.limits = limits
        board.note_python()
        return board

    @classmethod
    def opened(cls, path: str, *, writes: bool = False) -> Board:
        """Opens another rank's.

        Raises:
            OSError: That rank has ended.
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
        """What this rank wants."""
        return Limits(*map(self._double, _LIMITS))

    @limits.setter
    def limits(self, value: Limits) -> None:
        for place, seconds in zip(_LIMITS, value, strict=True):
            _DOUBLE.pack_into(self.memory, place, seconds)

    def note_python(self) -> None:
        """Notes that the rank lets Python run; its own thread does this."""
        _DOUBLE.pack_into(self.memory, _PYTHON_AT, time.monotonic())

    @property
    def python_at(self) -> float:
        """When it last did, in seconds of `time.monotonic`."""
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
        """What the watching process has said of slow ranks, the last of it; on rank 0."""
        return self._text(_NEWS, _STACK).splitlines()

    @news.setter
    def news(self, lines: list[str]) -> None:
        self._set_text(_NEWS, _STACK, "\n".join(lines))

    @property
    def has_read(self) -> bool:
        """Whether the rank has said why it ends."""
        return bool(self._count(_HAS_READ))

    def note_read(self) -> None:
        """Notes that it has."""
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
        """The length comes last: whoever sees one sees what it is of."""
        data = text.encode(errors="replace")[: end - begin - _COUNT.size]
        self._set_count(begin, 0)
        self.memory[begin + _COUNT.size : begin + _COUNT.size + len(data)] = data
        self._set_count(begin, len(data))
