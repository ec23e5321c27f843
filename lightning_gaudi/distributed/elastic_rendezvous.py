"""Gives the ranks of each torchrun attempt a part of its store that no earlier attempt used.

torchrun (torch 2.13) keeps one store for all its attempts, and the ranks write their addresses to
it under the same names each time. A restarted rank may therefore read the address of one that has
died: gloo gives up ("Connection refused"), and with HCCL the ranks take the communicator id of the
attempt before for their own and wait for ever. The number of the attempt would not do as a name,
since nodes may count differently: each agent counts the failures of its own ranks
(TORCHELASTIC_RESTART_COUNT). So the ranks agree on a name, in a way that leftovers of an earlier
attempt cannot disturb.

Source: torch 2.13, `distributed/rendezvous.py` (`_create_c10d_store`), `distributed/elastic`
(`rendezvous/dynamic_rendezvous.py`, `rendezvous/static_tcp_rendezvous.py`, `agent/server/api.py`);
Intel Gaudi PyTorch bridge 1.19, `distributed/hccl/ProcessGroupHCCL.cpp` (`broadcastUniqueHCCLID`),
`process_group_hccl_base.cpp` (`hostBarrier`, `destroyHandshake`).
"""

from __future__ import annotations

import ipaddress
import os
import socket
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.constants import default_pg_timeout

from lightning_gaudi.untrusted import printable

_PREFIX = "lightning_gaudi"
_POLL_S = 0.02
_PATIENT_S = 0.25
_MANY = 500
_PER_S = 1000
"""How many questions a second all ranks together ask while rank 0 is not there yet."""

_MAX_SHOWN = 16


def uses_agent_store() -> bool:
    """Returns whether torchrun holds one store for this attempt and earlier ones."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def own_store(environment: ClusterEnvironment, timeout: timedelta | None) -> Any:
    """Returns the store of this attempt's ranks: a part of torchrun's, or one that rank 0 holds.

    If a loopback address says that all ranks are on one machine, rank 0 listens on that interface
    only, where torch's own store listens on all interfaces.

    Args:
        environment: Tells ranks, world size and where the store is.
        timeout: How long to wait for the other ranks; None for torch's default.

    Returns:
        What `init_process_group` takes as `store`.

    Raises:
        TimeoutError: A rank did not come.
        MisconfigurationException: Another process has this one's rank.
    """
    # Without a port, which a group that this process has destroyed may still hold.
    if environment.world_size() == 1:
        return dist.HashStore()  # type: ignore[attr-defined]
    rank, world_size = environment.global_rank(), environment.world_size()
    timeout = default_pg_timeout if timeout is None else timeout
    address, port = environment.main_address, environment.main_port
    if uses_agent_store():
        store = _connect(address, port, is_master=False, timeout=timeout)
        name = agree_on_name(store, rank, world_size)
        store = PrefixStore(f"{_PREFIX}/{name}", store)
    elif (host := loopback(address)) is not None:
        store = _local_store(host, environment, timeout)
    else:
        store = _connect(address, port, world_size, is_master=rank == 0, timeout=timeout)
    claim_rank(store, rank, world_size)
    return store


def claim_rank(store: Any, rank: int, world_size: int) -> None:
    """Raises if another process has the same rank, so that all would wait for a missing one.

    Args:
        store: What the ranks of this attempt share.
        rank: Of this process.
        world_size: How many there are.

    Raises:
        MisconfigurationException: Another process has said that it is this rank.
    """
    first = f"{socket.gethostname()}, process {os.getpid()}"
    if store.add(_key("claimed", rank), 1) > 1:
        other = (_get(store, _key("owner", rank)) or b"").decode(errors="replace")
        raise MisconfigurationException(
            f"Two processes say that they are rank {rank} of {world_size}: {first}, and "
            f"{printable(other) or 'another one'}. Start each with a rank of its own, from 0 to "
            f"{world_size - 1} (RANK, or whatever the launcher sets), and each job with a "
            "MASTER_PORT of its own."
        )
    store.set(_key("owner", rank), first)


def loopback(address: str) -> str | None:
    """Returns the address to listen on if it is a loopback address; else None."""
    if address == "localhost":
        return "127.0.0.1"
    try:
        return address if ipaddress.ip_address(address).is_loopback else None
    except ValueError:
        return None


def _local_store(host: str, environment: ClusterEnvironment, timeout: timedelta) -> Any:
    """Returns a store that rank 0 holds and that other machines cannot reach."""
    port, rank = environment.main_port, environment.global_rank()
    settings: dict[str, Any] = {"timeout": timeout}
    if rank == 0:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((host, port))
            server.listen()
            # TCPStore has no argument for the interface, but takes a socket that listens already.
            # `detach` keeps it open beyond the block.
            settings["master_listen_fd"] = server.detach()
    return _connect(host, port, environment.world_size(), is_master=rank == 0, **settings)


def _connect(*args: Any, **settings: Any) -> Any:
    # Looked up at each call, since the vendor's package may replace the class.
    return dist.TCPStore(*args, **settings)  # type: ignore[attr-defined]


def agree_on_name(store: Any, rank: int, world_size: int) -> str:
    """Agrees on a name that all ranks of this attempt share and no earlier attempt had.

    Each rank says hello with a number of its own; rank 0 answers that number with the name, and the
    rank says that it has taken it. Nobody asks for the answer to somebody else, who said hello as
    this rank before; and rank 0 answers whoever says hello anew, until all have taken the name.
    What is said is numbered by the store, so that rank 0 reads each word once.

    Args:
        store: What the ranks share, whatever is left in it; its timeout is how long to wait.
        rank: Of this process.
        world_size: How many there are.

    Raises:
        TimeoutError: A rank did not come.
    """
    own, deadline = uuid.uuid4().hex, time.monotonic() + store.timeout.total_seconds()
    if rank == 0:
        _answer(store, own, {str(other) for other in range(1, world_size)}, deadline)
        return own
    _say(store, f"{rank} {own}")
    pause_s = max(_POLL_S, world_size * _POLL_S / _MANY)
    while (name := _get(store, _key("answer", own))) is None:
        _wait(store, [0], deadline, pause_s)
        pause_s = min(1.5 * pause_s, max(_PATIENT_S, world_size / _PER_S))
    _say(store, f"{rank} {own} {name.decode(errors='replace')}")
    return name.decode(errors="replace")


def _say(store: Any, words: str) -> None:
    """Puts some words behind all that was said."""
    store.set(_key("said", store.add(_key("said", "all"), 1)), words)


def _answer(store: Any, name: str, missing: set[str], deadline: float) -> None:
    """Answers all that is said until every rank has taken the name."""
    unread: list[int] = []
    num_said = 0
    while missing:
        num_now = store.add(_key("said", "all"), 0)
        unread += range(num_said + 1, num_now + 1)
        num_said = num_now
        # A rank that has died between the two has left a number without words.
        found = [each for each in unread if store.check([_key("said", each)])]
        for each in found:
            words = store.get(_key("said", each)).decode(errors="replace")
            who, own, taken = [*words.split(" "), "", ""][:3]
            if taken == name:
                missing.discard(who)
            elif own and not taken:
                store.set(_key("answer", own), name)
        unread = sorted({*unread} - {*found})
        if missing and not found:
            _wait(store, sorted(map(int, missing)), deadline, _POLL_S)


def _wait(store: Any, missing: Sequence[int], deadline: float, pause_s: float) -> None:
    if time.monotonic() > deadline:
        shown = ", ".join(map(str, missing[:_MAX_SHOWN]))
        more = len(missing) - _MAX_SHOWN
        raise TimeoutError(
            f"Timed out after {store.timeout.total_seconds():.0f} s: rank "
            f"{shown}{f' and {more} more' if more > 0 else ''} did not come to the store of "
            "torchrun, where this one has waited. Look for what was said there, or raise the "
            "timeout of the strategy."
        )
    time.sleep(min(pause_s, max(0.0, deadline - time.monotonic()) + _POLL_S))


def _get(store: Any, key: str) -> bytes | None:
    value: bytes | None = store.get(key) if store.check([key]) else None
    return value


def _key(what: str, which: int | str) -> str:
    return f"{_PREFIX}/{what}/{which}"
