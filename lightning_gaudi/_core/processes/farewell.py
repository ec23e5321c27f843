"""How the process of a rank of several ends.

Those of HCCL end together. When its process groups are destroyed, which the vendor's package does
by itself as the interpreter ends, each rank waits until all have come, without a timeout, and does
not let Python run meanwhile. So the ranks meet here before, where they can be told of one that
fails; and a rank that fails does not go there: it tells the others and ends with its exit status.
They meet as well where no interpreter ends, as a fork of `multiprocessing` does not: whoever holds
the store of all would take it along.

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
"""How long the rank that holds the store as a rule stays for the others to read how it ends."""

_COMING_S = 4.0
"""How long a rank that fails waits for others to come to their ends, once groups are destroyed."""

_current: Farewell | None = None
_num_groups = 0
_destroy: Any = None
_is_agreed = False


def prepare(destroy: Any = None) -> None:
    """Prepares for the end of this program, if it is one of several ranks that HCCL has connected.

    Args:
        destroy: What destroys all process groups; by default torch's.
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
    # After what the vendor has registered, and so before that runs.
    atexit.register(_at_exit)
    util.Finalize(None, _at_end_of_child, exitpriority=1)
    _current = Farewell(dist.group.WORLD, f"lightning_gaudi_end/{_num_groups}")
    _current.listen()


def _is_of_this_process(store: Any) -> bool:
    """Tells if no other rank reaches what ranks tell each other: there is nobody to wait for."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return isinstance(store, HashStore)


def why_another_failed() -> str | None:
    """Returns which other rank has failed, and with what error, where it could say so."""
    return None if _current is None else _current.heard


def note_agreement() -> None:
    """Notes that all ranks are about to end in good order, if with a status that is not 0."""
    global _is_agreed
    _is_agreed = True


def destroy_all(destroy: Any) -> None:
    """Destroys all process groups, as a program asks for.

    Args:
        destroy: Torch's function that does it.
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
    if error is not None and status is not None:
        if _tell_unless_agreed(farewell, error, status):
            processes.leave(status)
    else:
        try:
            reason = farewell.wait()
        except KeyboardInterrupt:
            processes.leave(rank_monitor.INTERRUPTED)
        if reason is not None:
            _give_up(farewell, reason)
    farewell.close()
    if dist.is_initialized():
        destroy_all(_destroy)


def _at_end_of_child() -> None:
    """Runs first when a process that `multiprocessing` has started ends."""
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
    """Tells the others that this rank fails, unless nobody needs it, and all come to their ends.

    So it is where all have agreed to end, or have destroyed their groups: they share nothing then.

    Returns:
        Whether they were told.
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
    """Returns who is to say farewell, unless that was said or this is a fork of that process."""
    if _current is None or _current.pid != os.getpid():
        return None
    is_there = dist.is_initialized() and _current.group is dist.group.WORLD
    return _current if is_there or _current.is_destroyed else None


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delays Ctrl-C until what is about to end by itself has ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


class Farewell:
    """What the ranks of a process group tell each other as they end, over its store."""

    def __init__(self, group: Any, name: str) -> None:
        self.group = group
        self.is_destroyed = False
        """Whether the program has destroyed the group, and goes on."""
        self.pid = os.getpid()
        self.rank = dist.get_rank()
        self.heard: str | None = None
        """Which other rank has failed, as it said."""
        self._name = name
        self._store: Any = PrefixStore(name, dist.distributed_c10d._get_default_store())
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._world_size = dist.get_world_size()
        self._missing = list(range(self._world_size))
        self._store.set(f"process/{self.rank}", processes.describe(self.pid))

    def note_destroyed(self) -> None:
        """Notes that the program destroys the group, which the vendor's package keeps."""
        self.is_destroyed = True

    def listen(self) -> None:
        """Ends this process, from a thread, some seconds after another rank has failed.

        It may be in a collective then, in which it would wait for ever.
        """
        store = dist.distributed_c10d._get_default_store()
        if hasattr(store, "clone"):  # since torch 2.8: a connection of its own for the thread
            own = PrefixStore(self._name, store.clone())
            self._thread = threading.Thread(
                target=self._listen, args=(own,), name="farewell", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Listens no longer.

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
        if not self._is_over.wait(rank_monitor.GRACE_S):  # it may end by itself, and say more
            rank_monitor.say(f"[rank: {self.rank}] ends because {outcome}")
            processes.end_now()

    def tell(self, outcome: str) -> None:
        """Tells the others how it ends; the first rank stays for a moment to be heard."""
        with contextlib.suppress(Exception):  # its store may be gone with another rank
            self._settle(outcome)
            if self.rank == 0:
                self._stay_until_heard()

    def _stay_until_heard(self) -> None:
        """Keeps the store for the others, of which some may not listen."""
        others = range(1, self._world_size)
        end = time.monotonic() + _HEARD_S
        while time.monotonic() < end and not all(map(self._is_told, others)):
            time.sleep(_POLL_S)

    def _is_told(self, rank: int) -> bool:
        return self._has(f"heard/{rank}") or processes.has_died(self._process(rank))

    def wait(self, within_s: float = math.inf, otherwise: str = "") -> str | None:
        """Waits until all ranks have come to their ends.

        Args:
            within_s: Seconds, after which those who did not come are given up, by all ranks.
            otherwise: How it ends then.

        Returns:
            Why they will not come; None if they have.
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
            if self.rank == 0 and outcome == _ALL:
                self._stay_until_heard()
        except RuntimeError:  # torch's of a connection
            return _NO_STORE
        return None if outcome == _ALL else outcome

    def _settle(self, outcome: str) -> None:
        """Says how it ends, for all ranks alike, unless somebody has: then that holds."""
        self._store.compare_set(_OUTCOME, "", outcome)

    def _who_has_died(self) -> str | None:
        """Returns which rank has died on this machine without a word."""
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
