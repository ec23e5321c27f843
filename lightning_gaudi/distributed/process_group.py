"""Makes the process group of a run, with HCCL between the cards and a watchdog over the ranks.

See `reliability.watchdog`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.utilities.distributed import _init_dist_connection
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_gaudi._core import collectives, processes, vendor
from lightning_gaudi._core.processes import farewell
from lightning_gaudi._core.processes.rank_monitor import say
from lightning_gaudi.reliability import stacks, watchdog
from lightning_gaudi.reliability.heartbeat_store import Board, Limits
from lightning_gaudi.reliability.settings import ReliabilitySettings

from .cluster import check_not_alone, check_port
from .elastic_rendezvous import own_store

BACKEND = "hccl"
"""The backend for tensors on an HPU; never another."""


def checked_backend(backend: str | None) -> str:
    """Returns the backend to initialize, which is HCCL for an HPU.

    Args:
        backend: What the user asked for, such as None, `"hccl"` or `"cpu:gloo,hpu:hccl"`.

    Raises:
        MisconfigurationException: It is another one for an HPU.
    """
    parts = (backend or BACKEND).split(",")
    if BACKEND not in parts and f"hpu:{BACKEND}" not in parts:
        raise MisconfigurationException(
            f"process_group_backend={backend!r} does not communicate between HPUs. Leave it out, "
            f"or pass {BACKEND!r}."
        )
    return ",".join(parts)


def init_process_group(
    environment: ClusterEnvironment, backend: str, timeout: timedelta | None
) -> None:
    """Connects all ranks over HCCL, now that each has its card.

    Args:
        environment: Tells ranks, world size and the address of rank 0.
        backend: What `checked_backend` gave.
        timeout: How long a collective may take.

    Raises:
        MisconfigurationException: There is a process group without HCCL or of other processes, rank
            0 cannot listen, or several processes drive the same card.
        TimeoutError: A rank that torchrun has started did not come.
    """
    store = _store_of_ray(environment)
    is_new = not dist.is_initialized()
    if is_new:
        # It belonged to a group that the program has destroyed.
        collectives.forget_cpu_group()
        if store is None and environment.global_rank() == 0:
            check_port(environment)
    os.environ["MASTER_ADDR"] = environment.main_address
    os.environ["MASTER_PORT"] = str(environment.main_port)
    # HCCL reads ranks and world size from the environment, which this sets before the group is
    # made.
    vendor.init_hccl(environment.world_size(), environment.global_rank(), environment.local_rank())
    if store is None and is_new:
        store = own_store(environment, timeout)
    _init_dist_connection(environment, backend, timeout=timeout, store=store)
    _check_group(environment.world_size())
    collectives.note_connected()
    if is_new:
        # Collective, so all ranks do it here, where they are known to be together.
        farewell.prepare()
        collectives.cpu_group(timeout)
        _check_cards(environment.node_rank())


def _store_of_ray(environment: ClusterEnvironment) -> Any:
    """Destroys the group of Ray's workers if it is for CPUs, and returns its store.

    Ray Train makes an "nccl" group for workers with GPUs, and a "gloo" group for others. It needs
    `TorchConfig(backend="hccl")` for HPUs, which its documents ask for and its examples for GPUs
    lack. Nothing has used the group yet, and at the end Ray destroys the default one, whichever it
    is.

    Source: Ray 2.60, `train/torch/config.py`.

    Returns:
        The ranks' store; None if they are to connect by themselves, or are connected over HCCL.
    """
    is_of_ray = type(environment).__module__.startswith("ray.")
    if not is_of_ray or not dist.is_initialized() or _has_backend():
        return None
    # A prefix, since the keys of the destroyed group are still in the store.
    store = dist.PrefixStore(BACKEND, dist.distributed_c10d._get_default_store())  # type: ignore[attr-defined]
    dist.destroy_process_group()
    return store


def _has_backend() -> bool:
    return f"hpu:{BACKEND}" in str(dist.get_backend_config())


def _check_group(world_size: int) -> None:
    if dist.get_world_size() != world_size:
        raise MisconfigurationException(
            f"devices and num_nodes ask for {world_size} processes, but {dist.get_world_size()} "
            "have been connected, and a process belongs to one group. Pass the same devices and "
            "num_nodes again, or use another program."
        )
    if not _has_backend():
        config = dist.get_backend_config()
        raise MisconfigurationException(
            f"torch.distributed is initialized with the backends {config}, none of which is "
            f"{BACKEND} for hpu. Let the strategy initialize it, or pass backend='{BACKEND}' to "
            "init_process_group."
        )


def _check_cards(node_rank: int) -> None:
    """Refuses two processes on one card, which a launcher may have assigned to both."""
    cards = collectives.gather_objects((socket.gethostname(), node_rank, vendor.selected_module()))
    ranks_of: dict[Any, list[str]] = {}
    for rank, card in enumerate(cards):
        ranks_of.setdefault(card, []).append(str(rank))
    for card, ranks in ranks_of.items():
        if card[2] is not None and len(ranks) > 1:
            raise MisconfigurationException(
                f"HLS_MODULE_ID={card[2]} has the ranks {', '.join(ranks)} of {card[0]} drive the "
                f"same module {card[2]}. Unset it: each rank then takes a card of its own; or set "
                "it to another module for each."
            )


def check_alone(environment: ClusterEnvironment | None) -> None:
    """Refuses to train alone in each of several processes; see `cluster.check_not_alone`.

    Once they have been connected, each may do something alone, such as a test on one card.
    """
    if not collectives.has_been_connected():
        check_not_alone(environment)


def watch_ranks(settings: ReliabilitySettings, timeout: timedelta | None) -> None:
    """Starts the watchdog of the process group, once for each group; all ranks do this.

    Args:
        settings: What the user wants.
        timeout: The process group's; None for torch's.
    """
    group = dist.group.WORLD
    if not settings.watchdog or dist.get_world_size() == 1 or watchdog.knows(group):
        return
    board = Board.new(_limits(settings, timeout))
    own = stacks.prepare(board.path)._replace(module=vendor.bound_module())
    told = collectives.gather_objects((own, secrets.token_hex()))
    others = [process for process, _ in told]
    meeting = watchdog.Meeting(dist.get_rank(), others, told[0][1])
    if len(set(meeting.hosts)) > 1:
        _listen(meeting)
    watchdog.start(group, board, meeting)
    processes.before_leaving(watchdog.stop)


def _listen(meeting: watchdog.Meeting) -> None:
    """Opens a port on rank 0's host for the watchdogs of other hosts, and tells them where."""
    from lightning_gaudi.reliability import links  # needed by several hosts alone

    address = os.environ.get("MASTER_ADDR") or socket.gethostname()
    port = 0
    if meeting.rank == 0:
        with contextlib.suppress(OSError):
            meeting.listener = links.listen(address, is_one_machine=meeting.is_one_machine)
            port = meeting.listener.getsockname()[1]
    meeting.address = collectives.broadcast_object((address, port))
    if port == 0 and meeting.rank == 0:
        say(
            f"MASTER_ADDR={address} is no address at which rank 0 can listen: the watchdog sees "
            "the ranks of each host alone"
        )


def adapt(settings: ReliabilitySettings, timeout: timedelta | None) -> None:
    """Applies the settings of a callback to the watchdog, if it runs; all ranks do this."""
    watchdog.change(_limits(settings, timeout) if settings.watchdog else None)


def _limits(settings: ReliabilitySettings, timeout: timedelta | None) -> Limits:
    timeout = timeout or dist.distributed_c10d.default_pg_timeout
    return watchdog.limits(timeout, settings.watchdog_timeout_s)._replace(
        slow_factor=settings.slow_rank_factor or 0.0, slow_s=settings.slow_rank_s
    )
