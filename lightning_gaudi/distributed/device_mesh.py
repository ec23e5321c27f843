"""Checks and completes FSDP2 and tensor parallelism that a user's code has applied."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn import Module

from lightning_gaudi._core import fsdp2, vendor
from lightning_gaudi._core.collectives import gather_objects
from lightning_gaudi._core.tied_weights import kept_tied
from lightning_gaudi._core.wording import listed


def check_sizes(strategy: Any) -> None:
    """Refuses a mesh that needs another number of cards, before any rank waits for another.

    Args:
        strategy: A `ModelParallelStrategy` of ours that knows its devices and nodes.

    Raises:
        ValueError: A size is no positive number.
        MisconfigurationException: The two do not make the number of cards.
    """
    data, tensors = strategy._data_parallel_size, strategy._tensor_parallel_size
    for name, size in (("data_parallel_size", data), ("tensor_parallel_size", tensors)):
        if size != "auto" and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise ValueError(
                f"ModelParallelStrategy({name}={size!r}) is no number of cards. Pass 'auto' or a "
                "number from 1 on."
            )
    num_cards = strategy.num_nodes * strategy.num_processes
    num_data = strategy.num_nodes if data == "auto" else data
    num_tensors = strategy.num_processes if tensors == "auto" else tensors
    # Lightning makes the mesh after the ranks are connected, and then a wrong size hangs some of
    # them.
    if num_data * num_tensors != num_cards:
        raise MisconfigurationException(
            f"ModelParallelStrategy(data_parallel_size={data!r}, tensor_parallel_size={tensors!r}) "
            f"needs {num_data} x {num_tensors} = {num_data * num_tensors} cards, but devices and "
            f"num_nodes give {num_cards}. Pass sizes whose product is {num_cards}; 'auto' is the "
            "number of nodes for data_parallel_size, of a node's devices for tensor_parallel_size."
        )


def check_eager(module: Module) -> None:
    """Refuses FSDP2 in the vendor's lazy mode; tensor parallelism alone goes in either.

    Source: Intel Gaudi documentation, "Using Fully Sharded Data Parallel (FSDP)": eager mode, with
    or without torch.compile. FSDP2 frees and refills the storage of weights as FSDP does.

    Raises:
        MisconfigurationException: A layer is in shards, and operations only gather in a graph.
    """
    if vendor.is_lazy() and any(isinstance(child, FSDPModule) for child in module.modules()):
        raise MisconfigurationException(
            "fully_shard works in the vendor's eager mode only, but this process is in lazy mode. "
            "Set PT_HPU_LAZY_MODE=0, or apply parallelize_module alone."
        )


def sum_and_divide(module: Module) -> None:
    """Makes FSDP2 add gradients up by ReduceOp.SUM, and divide the sums itself.

    It would leave the division to the collective, by AVG or, after `set_gradient_divide_factor`,
    by PREMUL_SUM. Release 1.19 of HCCL refuses both, 1.24 the latter. A torch that is too old for
    the switch keeps its own way.

    Source: Gaudi's PyTorch bridge 1.19.0 and 1.24.0, backend/helpers/collective_utils.cpp.

    Args:
        module: After the user's code has sharded it.
    """
    for child in module.modules():
        if isinstance(child, FSDPModule) and hasattr(child, "set_force_sum_reduction_for_comms"):
            child.set_force_sum_reduction_for_comms(True)


class FollowsFreezing:
    """Tells FSDP2 at once which weights a program freezes and unfreezes.

    Each weight has two parameters: its shard and, while it is gathered, the whole. The module shows
    one of them, depending on what FSDP2 has gathered ahead. A flag that is set on the whole is lost
    when the weight is sharded again.

    Args:
        module: After the user's code has sharded it.
    """

    def __init__(self, module: Module) -> None:
        states = fsdp2.states_of(module)
        groups = [group for state in states for group in fsdp2.groups_of(state)]
        self._weights = [each for group in groups for each in group.fsdp_params]
        self._known = [each.sharded_param.requires_grad for each in self._weights]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def update(self, *args: Any) -> None:
        """Updates the flags before FSDP2 gathers for a forward; the arguments are a hook's."""
        for index, weight in enumerate(self._weights):
            shard, whole = weight.sharded_param, getattr(weight, "_unsharded_param", None)
            trains = shard.requires_grad
            if whole is not None and whole.requires_grad != trains:
                # They differ, and the program has changed one of them: so the new value is not the
                # known one.
                trains = not self._known[index]
                shard.requires_grad_(trains)
                whole.requires_grad_(trains)
            self._known[index] = trains


def check_parallelized(module: Module, mesh: DeviceMesh, where: str) -> None:
    """Refuses a model that has been left as it is, and names the weights that would drift apart.

    Args:
        module: After the user's code has parallelized it.
        mesh: With an axis "data_parallel".
        where: What should have done it, such as `configure_model()`.

    Raises:
        MisconfigurationException: Each card has the whole model, though there are several.
    """
    modules = list(module.modules())
    if mesh.size() == 1 or any(isinstance(child, FullyShardedDataParallel) for child in modules):
        return  # Lightning itself refuses FullyShardedDataParallel here
    parameters = dict(module.named_parameters())
    if parameters and not any(isinstance(each, DTensor) for each in parameters.values()):
        raise MisconfigurationException(
            f"{where} has left all {len(parameters)} weights whole, so each of {mesh.size()} cards "
            "would train the whole model. ModelParallelStrategy parallelizes nothing itself: call "
            "torch's fully_shard or parallelize_module there, with the device mesh."
        )
    _warn_of_drift(module, parameters, mesh)


def _warn_of_drift(module: Module, parameters: Mapping[str, Tensor], mesh: DeviceMesh) -> None:
    """Warns, and raises no error: the user's code may reduce these gradients itself."""
    group = mesh["data_parallel"]
    names = [
        name
        for name, parameter in parameters.items()
        if parameter.requires_grad and not _spans(parameter, group)
    ]
    if group.size() > 1 and names:
        rank_zero_warn(
            f"{listed(names)} are not spread over the {group.size()} cards "
            "of the mesh's data_parallel axis, so nothing averages their gradients: each card "
            "trains its own. Call fully_shard(..., mesh=device_mesh['data_parallel']) on the "
            "modules that hold them, or reduce their gradients in on_after_backward."
        )


def _spans(parameter: Tensor, group: DeviceMesh) -> bool:
    """Returns whether the parameter is distributed over all ranks of `group`."""
    if not isinstance(parameter, DTensor):
        return False
    ranks = set(parameter.device_mesh.mesh.flatten().tolist())
    return ranks.issuperset(group.mesh.flatten().tolist())


def move_whole(module: Module, device: torch.device) -> None:
    """Moves the parts that are not sharded to the card, and keeps tied weights tied.

    Shards stay where FSDP2 has them, which is the CPU with a `CPUOffloadPolicy`.
    """
    with kept_tied(module):
        module._apply(  # type: ignore[no-untyped-call]
            lambda each: each if isinstance(each, DTensor) else each.to(device)
        )


@torch.no_grad()
def start_alike(module: Module, mesh: DeviceMesh) -> None:
    """Gives all copies of a weight or buffer the values of the first rank's.

    Ranks may have drawn different values. Only DistributedDataParallel makes them equal in torch;
    with `parallelize_module` a norm that stays whole would differ between cards.

    Args:
        module: Parallelized, and on its devices.
        mesh: With the axes "data_parallel" and "tensor_parallel".
    """
    for tensor in itertools.chain(module.parameters(), module.buffers()):
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        # An offloaded shard is on the CPU, but its ranks are connected by their cards.
        copy = local.to(mesh.device_type).contiguous()
        for axis in (mesh["data_parallel"], mesh["tensor_parallel"]):
            if axis.size() > 1 and not _spans(tensor, axis):
                group = axis.get_group()
                dist.broadcast(copy, dist.get_global_rank(group, 0), group)
        if copy is not local:
            local.copy_(copy)


def draw_alike(mesh: DeviceMesh) -> None:
    """Makes ranks that share layers draw the same numbers, such as for dropout.

    They do so unless the user has seeded them differently; then all take the first one's state.

    Args:
        mesh: With an axis "tensor_parallel".
    """
    states = gather_objects(vendor.get_rng_state())
    first = states[int(mesh["tensor_parallel"].mesh.flatten()[0])]
    if not torch.equal(first, states[dist.get_rank()]):
        vendor.set_rng_state(first)


def share_overflows(plugin: Any) -> None:
    """Makes all ranks leave out a step if the gradients of one have overflowed in float16.

    Args:
        plugin: The strategy's, of its precision.
    """
    if getattr(plugin, "scaler", None) is not None:
        plugin.scaler.spans_ranks = True
