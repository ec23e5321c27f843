"""Has a store in memory that counts its requests, for thousands of ranks in one process.

It behaves like torch's TCPStore as far as our code uses that. A real store would need two
connections for each rank.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta

from torch._C._distributed_c10d import Store

TIMEOUT = timedelta(seconds=100)


class CountedStore(Store):  # type: ignore[misc]
    """Counts requests; all ranks share one instance."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}
        self._awaited: dict[str, threading.Event] = {}
        self._begin = time.monotonic()
        self._in_slot: dict[int, int] = {}

    def _note(self) -> None:
        slot = int(time.monotonic() - self._begin)
        self._in_slot[slot] = self._in_slot.get(slot, 0) + 1

    @property
    def num_requests(self) -> int:
        """The number of requests so far; a request for many keys counts once."""
        return sum(self._in_slot.values())

    @property
    def num_bytes(self) -> int:
        """The size of all keys and values."""
        return sum(len(key) + len(value) for key, value in self._values.items())

    @property
    def timeout(self) -> timedelta:
        return TIMEOUT

    def clone(self) -> CountedStore:
        return self

    def has_extended_api(self) -> bool:
        return True

    def _put(self, key: str, value: bytes | str) -> None:
        self._values[key] = value.encode() if isinstance(value, str) else bytes(value)
        if (waiting := self._awaited.pop(key, None)) is not None:
            waiting.set()

    def set(self, key: str, value: bytes | str) -> None:
        with self._lock:
            self._note()
            self._put(key, value)

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        with self._lock:
            self._note()
            for key, value in zip(keys, values, strict=True):
                self._put(key, value)

    def append(self, key: str, value: bytes | str) -> None:
        with self._lock:
            self._note()
            more = value.encode() if isinstance(value, str) else bytes(value)
            self._put(key, self._values.get(key, b"") + more)

    def add(self, key: str, amount: int) -> int:
        with self._lock:
            self._note()
            found = int(self._values.get(key, b"0")) + amount
            self._put(key, str(found))
            return found

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        with self._lock:
            self._note()
            if key not in self._values and not expected:
                self._put(key, desired)
            return self._values[key]

    def check(self, keys: Sequence[str]) -> bool:
        with self._lock:
            self._note()
            return all(key in self._values for key in keys)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._values[key]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        self.wait(keys)
        return [self._values[key] for key in keys]

    def wait(self, keys: Sequence[str], timeout: timedelta = TIMEOUT) -> None:
        with self._lock:
            self._note()
            missing = [key for key in keys if key not in self._values]
            events = [self._awaited.setdefault(key, threading.Event()) for key in missing]
        for event in events:
            if not event.wait(timeout.total_seconds()):
                raise RuntimeError(f"wait timeout, keys: {missing}")
