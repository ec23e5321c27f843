"""Several cards: which one is this process's, and how the processes speak with each other.

What the strategies of the Trainer and of Fabric do alike. Tensors on the card go over HCCL, the
vendor's library; what concerns the host alone (barriers, objects, decisions) goes over a second
group on the CPU (gloo), so that nobody waits for a device because of it.
"""

from __future__ import annotations

import atexit
import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.utilities.distributed import _destroy_dist_connection, _init_dist_connection
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from lightning_gaudi import vendor

from .cluster import check_not_alone, check_port

BACKEND = "hccl"
"""The backend for tensors on an HPU; never another."""

DEVICE = torch.device("hpu", 0)
"""How a process sees its card, whichever it is."""

DDP_DEFAULTS: dict[str, Any] = {
    "bucket_cap_mb": 230,
    "find_unused_parameters": False,
    "gradient_as_bucket_view": True,
}
"""The vendor's settings of DistributedDataParallel, where the user has none.

Nor are buffers sent before each forward, but before each evaluation: see `sync_buffers`.
Source: Intel Gaudi documentation, "Distributed Training with PyTorch"; Model-References 1.23.
"""


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


def check_start_method(start_method: str, typed: str) -> None:
    """Refuse to fork: a card does not survive it.

    Args:
        start_method: `"popen"`, `"spawn"`, `"fork"` or `"forkserver"`.
        typed: The strategy as the user typed it.

    Raises:
        MisconfigurationException: It forks.
    """
    if start_method in ("fork", "forkserver"):
        raise MisconfigurationException(
            f"strategy={typed} starts its processes with {start_method!r}, which the driver of an "
            "HPU does not survive. In a script pass strategy='ddp' or 'ddp_spawn'; in a notebook "
            "train on one card (devices=1), or start a script from it."
        )


def refuse_interactive(strategy: Any, num_devices: int) -> None:
    """Refuse several cards in a notebook or a Python shell: processes could only be forked there.

    Args:
        strategy: As the user typed it, or the one that `"auto"` gave.
        num_devices: How many cards it is for.

    Raises:
        MisconfigurationException: Always.
    """
    typed = f"strategy={strategy!r} and " if isinstance(strategy, str) else ""
    raise MisconfigurationException(
        f"{typed}devices={num_devices} need a process for each card, which an interactive session "
        "(a notebook, a Python shell, `python -i`) cannot start: it would fork, which the driver "
        "of an HPU does not survive. Pass devices=1, or run the program as a script."
    )


def select_card(devices: Sequence[torch.device], local_rank: int) -> None:
    """Bind this process to its card, before anything has started it.

    The driver reads the card from HLS_MODULE_ID. Where a launcher has set that, one value for each
    rank, it is kept.

    Args:
        devices: The cards of this node's ranks; an index is a position among the visible modules.
        local_rank: This process among those of its node.

    Raises:
        MisconfigurationException: There is no such card, or the process drives another one.
    """
    if local_rank >= len(devices):
        raise MisconfigurationException(
            f"This process has the local rank {local_rank}, but devices={len(devices)} starts "
            f"{len(devices)} on a node. Pass as many devices as processes are started."
        )
    modules = [vendor.module_id(index) for index in _positions(devices)]
    module, mine = modules[local_rank], vendor.selected_module()
    if mine is None:
        if modules == [vendor.module_id(0)]:
            return  # any card will do: the driver takes a free one
        if vendor.is_initialized():
            raise MisconfigurationException(
                f"Local rank {local_rank} drives module {module}, but its HPU was in use before "
                "training began, and so may be another one. Use no hpu tensor before Trainer.fit "
                "or Fabric.launch, or set HLS_MODULE_ID before Python starts."
            )
        vendor.select_module(module)
    elif mine not in modules:
        raise MisconfigurationException(
            f"This process drives module {mine}, as HLS_MODULE_ID says, but the devices of this "
            f"run are the modules {', '.join(modules)}. Unset HLS_MODULE_ID, or pass other devices."
        )


def _positions(devices: Sequence[torch.device]) -> list[int]:
    """The cards' positions; devices that all are `hpu` or `hpu:0` are the first ones."""
    indices = [device.index or 0 for device in devices]
    return indices if len(set(indices)) == len(indices) else list(range(len(indices)))


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


def wrap(module: Module, settings: dict[str, Any]) -> DistributedDataParallel:
    """The module with its gradients averaged over the ranks in backward.

    Args:
        module: A module on the HPU.
        settings: The user's arguments of DistributedDataParallel.
    """
    defaults = dict(DDP_DEFAULTS)
    if "broadcast_buffers" not in settings:
        # torch 2.13 renamed it; under the old name the first copy is left out too.
        is_renamed = "forward_sync_buffers" in signature(DistributedDataParallel).parameters
        defaults["forward_sync_buffers" if is_renamed else "broadcast_buffers"] = False
    wrapped = DistributedDataParallel(module, **(defaults | settings))
    if defaults.get("broadcast_buffers") is False:
        sync_buffers(wrapped)
    return wrapped


def sync_buffers(module: Module) -> None:
    """Give all ranks the buffers of rank 0, such as the running statistics of a batch norm."""
    for buffer in module.buffers():
        dist.broadcast(buffer, 0)


def sync_buffers_before_evaluation(wrapped: DistributedDataParallel) -> None:
    """Have it `sync_buffers` at its first forward of each evaluation, which all ranks must do."""
    is_stale = True
    sync = torch.compiler.disable(sync_buffers)  # type: ignore[no-untyped-call]

    def before_forward(module: Module, args: Any) -> None:
        nonlocal is_stale
        if is_stale and not module.training:
            sync(module)
        is_stale = module.training

    if any(True for _ in wrapped.buffers()):
        wrapped.register_forward_pre_hook(before_forward)


class StopAgreement:
    """All ranks stop at the same step if one was asked to, and none of them waits for it.

    Each step starts one reduction on the CPU and reads that of the step before.
    """

    def __init__(self) -> None:
        self._votes = torch.zeros(1, dtype=torch.int32)
        self._work: Any = None

    def agree(self, *, wants_to_stop: bool) -> bool:
        """Whether a rank wanted to stop at the last step; all ranks call this at each step."""
        if self.finish():
            return True
        self._votes = torch.tensor([int(wants_to_stop)], dtype=torch.int32)
        self._work = dist.all_reduce(
            self._votes, dist.ReduceOp.MAX, group=cpu_group(), async_op=True
        )
        return False

    def finish(self) -> bool:
        """Wait for the reduction on its way; whether a rank wanted to stop."""
        if self._work is None:
            return False
        self._work.wait()
        self._work = None
        return bool(self._votes.item())
