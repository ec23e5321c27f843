"""How the processes of a run speak with each other.

Tensors on the card go over HCCL, the vendor's library; what concerns the host alone (barriers,
objects, decisions) goes over a second group on the CPU (gloo), so that nobody waits for a device
because of it.
"""

from __future__ import annotations

import atexit
import os
import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.utilities.distributed import _destroy_dist_connection, _init_dist_connection
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor

from lightning_gaudi._core import vendor

from .cluster import check_not_alone, check_port

BACKEND = "hccl"
"""The backend for tensors on an HPU; never another."""


def checked_backend(backend: str | None) -> str:
    """The backend to initialize, which is HCCL for an HPU.

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
    """Connect all ranks over HCCL, now that each has its card.

    Args:
        environment: Tells ranks, world size and the address of rank 0.
        backend: What `checked_backend` gave.
        timeout: How long a collective may take.

    Raises:
        MisconfigurationException: There is a process group without HCCL or of other processes, rank
            0 cannot listen, or several processes drive the same card.
    """
    global _cpu_group, _has_been_connected
    is_new = not dist.is_initialized()
    if is_new:
        # A former one, whose rank 0 listens as long as somebody holds it.
        _cpu_group = (None, None)
        if environment.global_rank() == 0:
            check_port(environment)
    os.environ["MASTER_ADDR"] = environment.main_address
    os.environ["MASTER_PORT"] = str(environment.main_port)
    vendor.init_hccl(environment.world_size(), environment.global_rank(), environment.local_rank())
    _init_dist_connection(environment, backend, timeout=timeout)
    _check_group(environment.world_size())
    _has_been_connected = True
    if is_new:
        atexit.register(_destroy_dist_connection)
        cpu_group(timeout)
        _check_cards(environment.node_rank())


def _check_group(world_size: int) -> None:
    if dist.get_world_size() != world_size:
        raise MisconfigurationException(
            f"devices and num_nodes ask for {world_size} processes, but {dist.get_world_size()} "
            "have been connected, and a process belongs to one group. Pass the same devices and "
            "num_nodes again, or use another program."
        )
    config = str(dist.get_backend_config())
    if f"hpu:{BACKEND}" not in config:
        raise MisconfigurationException(
            f"torch.distributed is initialized with the backends {config}, none of which is "
            f"{BACKEND} for hpu. Let the strategy initialize it, or pass backend='{BACKEND}' to "
            "init_process_group."
        )


def _check_cards(node_rank: int) -> None:
    """Refuse two processes on one card; whoever started them may have told both to drive it."""
    cards = gather_objects((socket.gethostname(), node_rank, vendor.selected_module()))
    for card in dict.fromkeys(cards):
        ranks = [str(rank) for rank, other in enumerate(cards) if other == card]
        if card[2] is not None and len(ranks) > 1:
            raise MisconfigurationException(
                f"HLS_MODULE_ID={card[2]} has the ranks {', '.join(ranks)} of {card[0]} drive the "
                f"same module {card[2]}. Unset it: each rank then takes a card of its own; or set "
                "it to another module for each."
            )


_has_been_connected = False
"""Whether this process has been one of several that speak with each other."""

_cpu_group: tuple[Any, Any] = (None, None)
"""The process group of all ranks, and the one on the CPU beside it."""


def cpu_group(timeout: timedelta | None = None) -> Any:
    """The group of all ranks on the CPU; made by the first call, which all ranks must do.

    Args:
        timeout: How long the first call lets an operation in it take.
    """
    global _cpu_group
    world = dist.group.WORLD
    if _cpu_group[0] is not world:
        _cpu_group = (world, dist.new_group(timeout=timeout, backend="gloo"))
    return _cpu_group[1]


def check_alone(environment: ClusterEnvironment | None) -> None:
    """Refuse to train alone in each of several processes; see `cluster.check_not_alone`.

    Once they have been connected, each may do something alone, such as a test on one card.
    """
    if not _has_been_connected:
        check_not_alone(environment)


def is_connected() -> bool:
    """Whether there are other ranks to speak with."""
    return dist.is_available() and dist.is_initialized()


def barrier() -> None:
    """Wait until all ranks are here; the devices work on."""
    if is_connected():
        dist.barrier(group=cpu_group())


def broadcast_object(value: Any, src: int = 0) -> Any:
    """The value that rank `src` has, on all ranks; the devices work on."""
    if not is_connected():
        return value
    values = [value]
    dist.broadcast_object_list(values, src, group=cpu_group())
    return values[0]


def gather_objects(value: Any) -> list[Any]:
    """The values of all ranks, by rank; the devices work on."""
    if not is_connected():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value, group=cpu_group())
    return values


def decide(decision: bool, *, all_ranks: bool) -> bool:
    """What all ranks (or any of them) decided; the devices work on."""
    if not is_connected():
        return decision
    votes = torch.tensor(int(decision))
    dist.all_reduce(votes, dist.ReduceOp.SUM, group=cpu_group())
    return int(votes) == dist.get_world_size() if all_ranks else int(votes) > 0


def reduce(
    tensor: Tensor, group: Any = None, reduce_op: dist.ReduceOp | str | None = "mean"
) -> Tensor:
    """Reduce a tensor over the ranks, in place, and without a barrier before it.

    Args:
        tensor: Of any shape; one on the CPU is reduced there.
        group: All ranks by default.
        reduce_op: `"mean"` or `"avg"`, `"sum"` (as is None), or another operation's name.

    Returns:
        `tensor`, reduced. The mean of integers is rounded toward zero.
    """
    if not is_connected():
        return tensor
    if group is None:
        group = cpu_group() if tensor.device.type == "cpu" else dist.group.WORLD
    is_mean = isinstance(reduce_op, str) and reduce_op.lower() in ("mean", "avg")
    # Gaudi's HCCL has no average.
    op = "sum" if is_mean or reduce_op is None else reduce_op
    dist.all_reduce(
        tensor, getattr(dist.ReduceOp, op.upper()) if isinstance(op, str) else op, group=group
    )
    return tensor.copy_(tensor / dist.get_world_size(group)) if is_mean else tensor
