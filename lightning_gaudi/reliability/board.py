"""`Board`: what the ranks write for each other in torch's store, by a thread that may get stuck.

The store is in a process of the run, as a rule rank 0: when that is stopped, whoever asks it waits.
So one thread alone asks, over a connection of its own, and others look at what it has brought.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import FileStore, PrefixStore, TCPStore

BEAT_S = 0.5
"""How often a rank says that it is there."""

STUCK_S = 5.0
"""After how long a store that does not answer is as good as gone."""

_PREFIX = "lightning_gaudi_watchdog"


def own_connection(store: Any) -> Any:
    """A store with the same content that another thread may wait for.

    Where torch cannot make one (before 2.8), its names may lack the prefixes of the one given.

    Args:
        store: Of any kind that torch's process groups have.
    """
    if hasattr(store, "clone"):
        return store.clone()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if isinstance(store, TCPStore):
        return TCPStore(store.host, store.port, is_master=False, wait_for_workers=False)
    path = getattr(store, "path", None)
    return FileStore(path) if isinstance(store, FileStore) and path else store


class Board:
    """This rank's side of what the ranks write.

    Args:
        store: The process group's.
        name: What the boards of its ranks have in common, and those of no other.
        rank: This one.
    """

    def __init__(self, store: Any, name: str, rank: int) -> None:
        self._store: Any = PrefixStore(f"{_PREFIX}/{name}", own_connection(store))
        self._store.set_timeout(timedelta(seconds=2 * STUCK_S))
        self._rank = rank
        self._readers: Sequence[int] = ()
        self._outbox: dict[str, str] = {}
        self._asked_since: float | None = None
        self._wake = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="watchdog-board", daemon=True)
        self._beat: Any = None
        self.beats: dict[int, tuple[Any, float]] = {}
        """The last new heartbeat of each rank that is listened to, and when it was first seen."""
        self.verdict: Any = None
        self.stacks: dict[int, str] = {}
        self.num_seen = 0
        self.num_rounds = 0
        self.is_lost = False

    def write_first(self, beat: Any) -> None:
        """Write the first heartbeat, before anybody listens."""
        self._store.set(f"beat/{self._rank}", json.dumps(beat))

    def start(self, beat: Any, listens_to: Sequence[int]) -> None:
        """Begin to write and to listen; all ranks have written their first heartbeat.

        Args:
            beat: A function that makes one.
            listens_to: The ranks whose heartbeats are wanted.
        """
        self._beat, self._readers = beat, listens_to
        self._thread.start()

    def propose(self, verdict: Any) -> None:
        """Have a verdict be everybody's, unless there is one."""
        self._outbox["verdict"] = json.dumps(verdict)
        self._wake.set()

    def tell_stack(self, rank: int, stack: str) -> None:
        """Have everybody know a rank's stack."""
        self._outbox[f"stack/{rank}"] = stack
        self._wake.set()

    def say_seen(self) -> None:
        """Have rank 0, in which the store may be, know that this one has read it all."""
        self._outbox["seen"] = "1"
        self._wake.set()

    @property
    def answers(self) -> bool:
        """Whether the store can still be asked."""
        since = self._asked_since
        is_stuck = since is not None and time.monotonic() - since > STUCK_S
        return not self.is_lost and not is_stuck

    def close(self, within_s: float) -> None:
        """Write a last heartbeat, and no more."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(within_s)

    def _run(self) -> None:
        while True:
            is_last = self._is_closing
            self._asked_since = time.monotonic()
            try:
                self._ask()
            except Exception:  # the store is gone, whatever torch calls that
                self.is_lost = True
                return
            self._asked_since = None
            self.num_rounds += 1
            if is_last:
                return
            # Once there is a verdict, all that is left is a matter of moments.
            self._wake.wait(BEAT_S if self.verdict is None else BEAT_S / 5)
            self._wake.clear()

    def _ask(self) -> None:
        store = self._store
        store.set(f"beat/{self._rank}", json.dumps(self._beat()))
        for name in [*self._outbox]:
            value = self._outbox.pop(name)
            if name == "verdict":
                store.compare_set(name, "", value)
            elif name == "seen":
                store.add(name, 1)
            else:
                store.set(name, value)
        keys = [f"beat/{rank}" for rank in self._readers]
        found = store.multi_get(keys) if store.has_extended_api() else [store.get(k) for k in keys]
        now = time.monotonic()
        for rank, text in zip(self._readers, found, strict=True):
            beat = json.loads(text)
            if rank not in self.beats or self.beats[rank][0] != beat:
                self.beats[rank] = (beat, now)
        if self.verdict is None and store.check(["verdict"]):
            self.verdict = json.loads(store.get("verdict"))
        if self.verdict is not None:
            self._read_farewells()

    def _read_farewells(self) -> None:
        for rank in self.verdict["stacks"]:
            if rank not in self.stacks and self._store.check([f"stack/{rank}"]):
                self.stacks[rank] = self._store.get(f"stack/{rank}").decode()
        self.num_seen = self._store.add("seen", 0)
