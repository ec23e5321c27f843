"""Ends the ranks of an HCCL process group together, without waiting for one that has failed.

When HCCL's process groups are destroyed, which the vendor's package does by itself at the end of
the interpreter, each rank waits for all others without a timeout, and holds the GIL meanwhile. So
the ranks meet here before, where they can be told of one that fails. A rank that fails does not go
to that meeting, but tells the others and ends with its exit status. Ranks that `multiprocessing`
has forked meet, too, though no interpreter ends there, since the rank that holds the store would
take it along.

This holds also if the program destroys the groups itself: the vendor's package remembers each group
by a weak pointer, which keeps it and its store from being freed before the interpreter ends. Until
then the ranks go on listening for one that fails.

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
_NO_STORE = "the process that holds the store, as a rule rank 0's, is gone"
_LISTEN_S = 1.0
_HEARD_S = 2.5 * _LISTEN_S
"""How long rank 0, which usually holds the store, stays for the others to read the outcome."""

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
    _current = Farewell(dist.group.WORLD, f"lightning_gaudi_end/{_num_groups}")
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
    """Exchanges between the ranks of a process group how they end, over its store."""

    def __init__(self, group: Any, name: str) -> None:
        self.group = group
        self.is_destroyed = False
        """Whether the program has destroyed the group and goes on."""
        self.pid = os.getpid()
        self.rank = dist.get_rank()
        self.heard: str | None = None
        """Which other rank has failed, in its own words."""
        self._name = name
        self._store: Any = PrefixStore(name, dist.distributed_c10d._get_default_store())
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._world_size = dist.get_world_size()
        self._missing = list(range(self._world_size))
        self._store.set(f"process/{self.rank}", processes.describe(self.pid))

    def note_destroyed(self) -> None:
        """Notes that the program destroys the group, which the vendor's package keeps alive."""
        self.is_destroyed = True

    def listen(self) -> None:
        """Starts a thread that ends this process some seconds after another rank has failed.

        The main thread may be in a collective then, in which it would wait for ever.
        """
        store = dist.distributed_c10d._get_default_store()
        # A thread needs a connection of its own, which a store can make since torch 2.8: requests
        # over one connection wait for each other.
        if hasattr(store, "clone"):
            own = PrefixStore(self._name, store.clone())
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
        if thread is not None and thread is not threading.current_thread():
            thread.join(5 * _LISTEN_S)

    def _listen(self, store: Any) -> None:
        outcome = ""
        while not outcome and not self._is_over.wait(_LISTEN_S):
            try:
                if store.check([_OUTCOME]):
                    outcome = _shown(store.get(_OUTCOME))
                    store.set(f"heard/{self.rank}", "")
            except RuntimeError:
                outcome = _NO_STORE
        if outcome in ("", _ALL):
            return
        if outcome != _NO_STORE:
            self.heard = outcome
        # The failure may end this rank, too, by an error that says more.
        if not self._is_over.wait(rank_monitor.GRACE_S):
            rank_monitor.say(f"[rank: {self.rank}] ends because {outcome}")
            processes.end_now()

    def tell(self, outcome: str) -> None:
        """Tells the others how this rank ends; rank 0 stays for a moment to be heard."""
        with contextlib.suppress(Exception):  # its store may be gone with another rank
            self._settle(outcome)
            if self.rank == 0:
                self._stay_until_heard()

    def _stay_until_heard(self) -> None:
        """Keeps the store alive until the others have read the outcome, or some seconds."""
        others = range(1, self._world_size)
        end = time.monotonic() + _HEARD_S
        while time.monotonic() < end and not all(map(self._is_told, others)):
            time.sleep(_POLL_S)

    def _is_told(self, rank: int) -> bool:
        return self._has(f"heard/{rank}") or processes.has_died(self._process(rank))

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
            self._store.set(f"come/{self.rank}", "")
            while not self._has(_OUTCOME):
                self._missing = [each for each in self._missing if not self._has(f"come/{each}")]
                if not self._missing:
                    self._settle(_ALL)
                elif (gone := self._who_has_died()) is not None:
                    self._settle(gone)
                elif time.monotonic() > end:
                    self._settle(otherwise)
                else:
                    time.sleep(_POLL_S)
            outcome = self._get(_OUTCOME)
            self._store.set(f"heard/{self.rank}", "")
            # Rank 0 usually holds the store. If it ended now, the others' last question would fail.
            if self.rank == 0 and outcome == _ALL:
                self._stay_until_heard()
        except RuntimeError:  # torch's of a connection
            # A RuntimeError is torch's of a broken connection.
            return _NO_STORE
        return None if outcome == _ALL else outcome

    def _settle(self, outcome: str) -> None:
        """Sets the outcome for all ranks, unless one is set."""
        # One step in the store: two ranks that settle it at the same time get the same outcome.
        self._store.compare_set(_OUTCOME, "", outcome)

    def _who_has_died(self) -> str | None:
        """Returns which rank of this machine has died without having told so."""
        for rank in self._missing:
            if processes.has_died(self._process(rank)) and not self._has(f"come/{rank}"):
                return f"rank {rank} has died"
        return None

    def _process(self, rank: int) -> str:
        """Returns how a rank has described its process; "" if it has not yet."""
        return self._get(f"process/{rank}") if self._has(f"process/{rank}") else ""

    def _has(self, key: str) -> bool:
        return bool(self._store.check([key]))

    def _get(self, key: str) -> str:
        return _shown(self._store.get(key))


def _shown(value: bytes) -> str:
    """Returns what another process has written, for a terminal."""
    return printable(value.decode(errors="replace"), max_chars=600)
