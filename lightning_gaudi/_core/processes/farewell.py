"""Ends the ranks of an HCCL process group together, without waiting for one that has failed.

When HCCL's process groups are destroyed, which the vendor's package does by itself at the end of
the interpreter, each rank waits for all others without a timeout, and holds the GIL meanwhile. So
the ranks meet here before, where they can be told of one that fails. A rank that fails does not go
to that meeting, but tells the others and ends with its exit status. Ranks that `multiprocessing`
has forked meet, too, though no interpreter ends there, since the rank that holds the store would
take it along.

What this asks of the store grows with the ranks, not with their square, and is nothing between the
first and the last moment: each rank waits for a key of its own, which is set once it is known how
all end; those who have come are counted by the store; and only the ranks of one host, which alone
can see it, look whether one of them has died.

A program that destroys the groups itself does not change that: the vendor's package remembers each
group by a weak pointer, so that none is freed, nor the store that it holds, before the interpreter
ends. Until then the ranks go on to listen for one that fails.

Source: Intel Gaudi PyTorch bridge 1.19 and 1.24.0, `distributed/hccl/process_group_hccl_base.cpp`
(`hostBarrier`, `destroyHandshake`), `process_group_registry.hpp` (`insert`, `cleanup`); torch 2.13,
`c10/util/intrusive_ptr.h` (the destructor waits for weak pointers).
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing import parent_process, util
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore

from lightning_gaudi._core import collectives, processes, progress
from lightning_gaudi.untrusted import printable

from . import exit_status, rank_monitor

_POLL_S = 0.05
_BACKEND = "hccl"
_OUTCOME, _ALL = "outcome", "all have come"
_COME, _HEARD = "come", "heard"
_NO_STORE = "the process that holds the store, as a rule rank 0's, is gone"
_JOIN_S = 5.0
_DEATH_S = 0.5
"""How often a rank that waits at its end looks whether one beside it has died."""

_HEARD_S = 2.5
"""How long the rank that holds the store as a rule stays for the others to read how it ends."""

_FOR_EVER = timedelta(days=20)
"""How long a thread waits for its key at a time: torch counts milliseconds in 32 bits."""

_PER_S = 500
"""How many questions a second all ranks together ask where they must ask again and again."""

_COMING_S = 4.0
"""How long a failing rank waits for the others to end, once the groups are destroyed."""

_current: Farewell | None = None
_num_groups = 0
_destroy: Any = None
_is_agreed = False


def prepare(destroy: Any = None) -> None:
    """Prepares the end of this program if it is one of several ranks connected by HCCL.

    Args:
        destroy: The function that destroys all process groups; by default torch's.
    """
    global _current, _num_groups, _destroy
    if not dist.is_initialized() or (_current is not None and _current.group is dist.group.WORLD):
        return
    if dist.get_world_size() == 1 or _BACKEND not in str(dist.get_backend_config()):
        return
    if _is_of_this_process(dist.distributed_c10d._get_default_store()):
        return
    _destroy = destroy or _destroy or dist.destroy_process_group
    _num_groups += 1
    if _current is not None:
        _current.close()
        atexit.unregister(_at_exit)
    # `atexit` runs handlers in reverse order: registered after the vendor's, this one runs before.
    atexit.register(_at_exit)
    util.Finalize(None, _at_end_of_child, exitpriority=1)
    store = dist.distributed_c10d._get_default_store()
    name = f"lightning_gaudi_end/{_num_groups}"
    _current = Farewell(dist.group.WORLD, name, store, dist.get_rank(), dist.get_world_size())
    _current.listen()


def _is_of_this_process(store: Any) -> bool:
    """Returns whether the store is in this process alone, so that there is no one to wait for."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return isinstance(store, HashStore)


def why_another_failed() -> str | None:
    """Returns which other rank has failed, and how, if it could tell."""
    return None if _current is None else _current.heard


def note_agreement() -> None:
    """Notes that all ranks have agreed to end, possibly with a status other than 0."""
    global _is_agreed
    _is_agreed = True


def destroy_all(destroy: Any) -> None:
    """Destroys all process groups on behalf of the program.

    Args:
        destroy: Torch's function that does so.
    """
    farewell = _ready()
    if farewell is not None:
        farewell.note_destroyed()
    with _uninterrupted(), progress.waiting("destroy_process_group"):
        collectives.forget_cpu_group()
        destroy()


def _at_exit() -> None:
    farewell = _ready()
    if farewell is None:
        if _current is not None and _current.pid == os.getpid():
            _current.close()
        return
    error, status = exit_status.error(), exit_status.of_failure()
    # A rank that fails must not meet the others in the vendor's handler: they may never come to it.
    if error is not None and status is not None:
        if _tell_unless_agreed(farewell, error, status):
            processes.leave(status)
    else:
        try:
            reason = farewell.wait()
        except KeyboardInterrupt:
            # The user does not want to wait for the others.
            processes.leave(rank_monitor.INTERRUPTED)
        if reason is not None:
            _give_up(farewell, reason)
    farewell.close()
    if dist.is_initialized():
        destroy_all(_destroy)


def _at_end_of_child() -> None:
    """Runs at the end of a process that `multiprocessing` has started, before its finalizers."""
    farewell = _ready()
    if parent_process() is None or farewell is None or processes.is_leaving():
        return
    error = sys.exc_info()[1]
    if error is not None and (status := exit_status.of(error)):
        _tell_unless_agreed(farewell, error, status)
        return
    if (reason := farewell.wait()) is not None:
        _give_up(farewell, reason)


def _tell_unless_agreed(farewell: Farewell, error: BaseException, status: int) -> bool:
    """Tells the other ranks that this one fails, unless all of them come to their ends.

    They do so if all have agreed to end, or have destroyed their groups and share nothing any more.

    Returns:
        Whether the others were told.
    """
    how = f"rank {farewell.rank} ended with exit status {status}"
    if not isinstance(error, SystemExit):
        how = f"rank {farewell.rank} failed with {exit_status.in_one_line(error)}"
    if _is_agreed or farewell.is_destroyed:
        within_s = rank_monitor.STOP_S if _is_agreed else _COMING_S
        if farewell.wait(within_s, otherwise=how) is None:
            return False
    farewell.tell(how)
    return True


def _give_up(farewell: Farewell, reason: str) -> None:
    rank_monitor.say(f"[rank: {farewell.rank}] ends without the others: {reason}")
    processes.leave(1)


def _ready() -> Farewell | None:
    """Returns the pending farewell of this process; None in a fork, or if it is done."""
    if _current is None or _current.pid != os.getpid():
        return None
    is_there = dist.is_initialized() and _current.group is dist.group.WORLD
    return _current if is_there or _current.is_destroyed else None


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignores Ctrl-C in the block, which ends by itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


class Farewell:
    """What the ranks of a process group tell each other as they end, over its store.

    Args:
        group: The process group.
        name: Of their part of the store; another one for each group.
        store: What the ranks share.
        rank: Of this process.
        world_size: How many there are.
    """

    def __init__(self, group: Any, name: str, store: Any, rank: int, world_size: int) -> None:
        self.group = group
        self.is_destroyed = False
        """Whether the program has destroyed the group and goes on."""
        self.pid = os.getpid()
        self.rank = rank
        self.heard: str | None = None
        """Which other rank has failed, as it said."""
        self._name, self._world_size = name, world_size
        self._shared = store
        self._store: Any = PrefixStore(name, store)
        self._outcome, self._is_told = "", threading.Event()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        process = processes.describe(self.pid)
        self._neighbours = _Neighbours(self._store, rank, process, world_size)
        self._have_come: set[int] = set()

    def note_destroyed(self) -> None:
        """Notes that the program destroys the group, which the vendor's package keeps alive."""
        self.is_destroyed = True

    def listen(self) -> None:
        """Starts a thread that ends this process some seconds after another rank has failed.

        The main thread may be in a collective then, in which it would wait for ever.
        """
        if hasattr(self._shared, "clone"):  # since torch 2.8: a connection of its own for it
            own = PrefixStore(self._name, self._shared.clone())
            self._thread = threading.Thread(
                target=self._listen, args=(own,), name="farewell", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Stops listening.

        A thread that is in torch's code in C++ when the interpreter ends would abort the process.
        """
        self._is_over.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            with contextlib.suppress(Exception):  # its store may be gone, and the thread with it
                self._store.set(_told(self.rank), "")
            thread.join(_JOIN_S)

    def _listen(self, store: Any) -> None:
        outcome = ""
        while not outcome and not self._is_over.is_set():
            try:
                store.wait([_told(self.rank)], _FOR_EVER)
                if store.check([_OUTCOME]):
                    outcome = _shown(store.get(_OUTCOME))
            except RuntimeError:
                outcome = _NO_STORE
        if outcome not in ("", _ALL, _NO_STORE):
            self.heard = outcome
        self._outcome = outcome  # first: whoever holds the store may leave once this is heard
        if outcome not in ("", _NO_STORE):
            with contextlib.suppress(RuntimeError):
                self._note_heard(store)
        self._is_told.set()
        if outcome in ("", _ALL):
            return
        if not self._is_over.wait(rank_monitor.GRACE_S):  # it may end by itself, and say more
            rank_monitor.say(f"[rank: {self.rank}] ends because {outcome}")
            processes.end_now()

    def _note_heard(self, store: Any) -> None:
        """Tells rank 0, which may hold the store, that this one needs it no more."""
        store.set(f"{_HEARD}/{self.rank}", "")
        store.add(_HEARD, 1)

    def tell(self, outcome: str) -> None:
        """Tells the others how it ends; the first rank stays for a moment to be heard."""
        self._is_over.set()  # its thread is not to end what ends by itself
        with contextlib.suppress(Exception):  # its store may be gone with another rank
            self._settle(outcome)
            if self.rank == 0:
                self._stay_until_heard()

    def _stay_until_heard(self) -> None:
        """Keeps the store for the others, of which some may not listen."""
        end = time.monotonic() + _HEARD_S
        while time.monotonic() < end:
            dead = [each for each in self._neighbours.dead() if not self._has(f"{_HEARD}/{each}")]
            num_heard = self._store.add(_HEARD, 0)  # before this rank's own is looked for
            is_own = self._has(f"{_HEARD}/{self.rank}")
            if num_heard - is_own + len(dead) >= self._world_size - 1:
                return
            time.sleep(_POLL_S)

    def wait(self, within_s: float = math.inf, otherwise: str = "") -> str | None:
        """Waits until all ranks have come to their ends.

        Args:
            within_s: Seconds after which the ranks that have not come are given up, by all.
            otherwise: The outcome in that case.

        Returns:
            Why they do not come; None if they have.
        """
        end = time.monotonic() + within_s
        try:
            self._store.set(f"{_COME}/{self.rank}", "")
            if self._store.add(_COME, 1) == self._world_size:
                self._settle(_ALL)
            asks, pause_s = _Asking(self._world_size), _POLL_S
            while not (outcome := self._how_it_ends(asks)):
                if (gone := self._who_has_died()) is not None:
                    self._settle(gone)
                elif time.monotonic() > end:
                    end = math.inf
                    self._settle(otherwise)
                else:
                    self._is_told.wait(pause_s)
                    pause_s = min(1.5 * pause_s, _DEATH_S)
            if self.rank == 0 and outcome == _ALL:
                self._stay_until_heard()
        except RuntimeError:  # torch's of a broken connection
            # As soon as this rank's thread has heard, the store may be gone with rank 0.
            outcome = self._outcome or _NO_STORE
        return None if outcome == _ALL else outcome

    def _how_it_ends(self, asks: _Asking) -> str:
        """Returns what was settled; "" if nothing was yet. The thread hears of it, if there is one.

        Args:
            asks: Says when the store is asked where nobody listens.
        """
        if self._thread is not None and self._thread.is_alive():
            return self._outcome if self._is_told.is_set() else ""
        if not self._outcome and asks.is_due() and self._has(_OUTCOME):
            self._outcome = self._get(_OUTCOME)
            self._note_heard(self._store)
        return self._outcome

    def _settle(self, outcome: str) -> None:
        """Says how it ends, for all ranks alike, unless somebody has: then that holds."""
        is_first = not self._has(_OUTCOME)
        if is_first and _shown(self._store.compare_set(_OUTCOME, "", outcome)) == outcome:
            self._tell_all([_told(rank) for rank in range(self._world_size)])
        else:  # whoever said so first may have died before it has told this one
            self._store.set(_told(self.rank), "")

    def _tell_all(self, told: list[str]) -> None:
        if self._store.has_extended_api():
            self._store.multi_set(told, [""] * len(told))
        else:
            for key in told:
                self._store.set(key, "")

    def _who_has_died(self) -> str | None:
        """Returns which rank has died on this machine without a word."""
        for rank in self._neighbours.dead():
            if rank not in self._have_come and not self._has(f"{_COME}/{rank}"):
                return f"rank {rank} has died"
            self._have_come.add(rank)
        return None

    def _has(self, key: str) -> bool:
        return bool(self._store.check([key]))

    def _get(self, key: str) -> str:
        return _shown(self._store.get(key))


def _told(rank: int) -> str:
    """Returns the key for which a rank waits."""
    return f"told/{rank}"


class _Asking:
    """When a rank asks the store again, so that all together ask `_PER_S` times a second at most.

    Args:
        world_size: How many ranks may ask.
    """

    def __init__(self, world_size: int) -> None:
        self._longest_s = max(1.0, world_size / _PER_S)
        self._every_s = _POLL_S
        self._next = 0.0

    def is_due(self) -> bool:
        """Returns whether it is time, each time a while later."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._every_s
        self._every_s = min(2 * self._every_s, self._longest_s)
        return True


class _Neighbours:
    """The other ranks of this machine, of which this one sees whether they live.

    Args:
        store: Where they say so.
        rank: This one.
        process: How `processes.describe` describes this one.
        world_size: How many ranks there are on all machines.
    """

    def __init__(self, store: Any, rank: int, process: str, world_size: int) -> None:
        self._store, self._rank = store, rank
        self._host = f"host/{process.rsplit(' ', 2)[0]}"
        self._others: dict[int, str] = {}
        self._num_known = 0
        self._asking = _Asking(world_size)
        store.set(f"{self._host}/{store.add(self._host, 1)}", f"{rank} {process}")

    def dead(self) -> list[int]:
        """Returns those that have died, of those that have come into being."""
        if self._asking.is_due():
            self._read_new()
        return [rank for rank, process in self._others.items() if processes.has_died(process)]

    def _read_new(self) -> None:
        num = int(self._store.add(self._host, 0))
        for number in range(self._num_known + 1, num + 1):
            if not self._store.check([f"{self._host}/{number}"]):
                return  # it is about to say so
            told, self._num_known = _shown(self._store.get(f"{self._host}/{number}")), number
            rank, _, process = told.partition(" ")
            if rank.isdecimal() and int(rank) != self._rank:
                self._others[int(rank)] = process


def _shown(value: bytes) -> str:
    """Returns what another process has written, for a terminal."""
    return printable(value.decode(errors="replace"), max_chars=600)
