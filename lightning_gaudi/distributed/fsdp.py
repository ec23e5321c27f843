"""Checks and completes the arguments of FSDP where torch would silently go wrong on HPUs."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.nn import Module

from lightning_gaudi._core import vendor

from .devices import check_float16


def check_arguments(
    typed: str, arguments: dict[str, Any], sharding: ShardingStrategy, state_dict_type: str
) -> None:
    """Checks the arguments of a strategy once it is known to be for HPUs.

    Args:
        typed: The strategy as the user typed it.
        arguments: The keyword arguments of FullyShardedDataParallel.
        sharding: `sharding_strategy` of the strategy.
        state_dict_type: That of the strategy.

    Raises:
        MisconfigurationException: An HPU, or FSDP, cannot honour it.
    """
    # Source: Intel Gaudi documentation, "Using Fully Sharded Data Parallel (FSDP)"; limitations of
    # FSDP in the documentation of lightning-habana, `advanced.rst`.
    if vendor.is_lazy():
        raise MisconfigurationException(
            f"strategy={typed} trains in the vendor's eager mode only, but this process is in lazy "
            "mode. Set PT_HPU_LAZY_MODE=0, or pass strategy='deepspeed_stage_3'."
        )
    if "device_id" in arguments:
        raise MisconfigurationException(
            f"FSDPStrategy(device_id={arguments['device_id']!r}): the strategy gives each process "
            "its card. Leave device_id out, and choose cards by devices=[...]."
        )
    if state_dict_type not in ("full", "sharded"):
        raise MisconfigurationException(
            f"FSDPStrategy(state_dict_type={state_dict_type!r}) is no kind of checkpoint. Pass "
            "'full' for one file, or 'sharded' for a folder with a file of each rank."
        )
    if (mesh := arguments.get("device_mesh")) is not None:
        _check_mesh(mesh, sharding)


def complete(
    arguments: dict[str, Any], sharding: ShardingStrategy, *, num_nodes: int, num_cards: int
) -> None:
    """Makes the mesh once all ranks are connected, and lets copies of shards start equal.

    Args:
        arguments: The keyword arguments of FullyShardedDataParallel; changed in place.
        sharding: `sharding_strategy` of the strategy.
        num_nodes: That of the Trainer.
        num_cards: The cards of each node.

    Raises:
        MisconfigurationException: The mesh has not as many cards as there are.
    """
    mesh = arguments.get("device_mesh")
    if mesh is None and arguments.get("process_group") is None:
        # Without one a HYBRID_SHARD would take all cards of the machine, whether or not they train,
        # and shards would be torch's ShardedTensors in checkpoints, and not DTensors: on a rank
        # without a part of a small one they ask for a CUDA device (2.13, `ShardedTensor.to`).
        mesh = (num_nodes, num_cards) if _is_hybrid(sharding) else (num_nodes * num_cards,)
        if num_nodes > 1:
            _check_mesh(mesh, sharding)
    if mesh is not None:
        arguments["device_mesh"] = _make_mesh(mesh)
    if _is_hybrid(sharding) or sharding is ShardingStrategy.NO_SHARD:
        # Otherwise each copy keeps the random weights that its own process has drawn.
        arguments.setdefault("sync_module_states", True)


def check_fp16(precision: str, config: MixedPrecision | None) -> None:
    """Refuses float16 on a card that does not compute in it; acquires the card if it is asked for.

    Args:
        precision: The name that was passed, such as `"16-mixed"`.
        config: `mixed_precision` of the strategy.

    Raises:
        MisconfigurationException: The card does not compute in it.
    """
    if precision.startswith("16"):
        setting, instead = f"precision={precision!r}", f"precision='bf{precision}'"
    elif config is not None and torch.float16 in (config.param_dtype, config.reduce_dtype):
        setting, instead = "FSDPStrategy(mixed_precision=...) with torch.float16", "torch.bfloat16"
    else:
        return
    check_float16(setting, instead)


def check_wrapped(model: Module) -> None:
    """Refuses a model of which its user has wrapped only some parts.

    Args:
        model: One with FullyShardedDataParallel in it.

    Raises:
        MisconfigurationException: Each rank would train such a part for itself, on its CPU.
    """
    wrapped = {
        parameter
        for root in FullyShardedDataParallel.fsdp_modules(model, root_only=True)
        for parameter in root.parameters()
    }
    left_out = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter not in wrapped
    ]
    if left_out:
        raise MisconfigurationException(
            f"This model wraps layers for FSDP itself, but not {', '.join(left_out[:5])}"
            f"{', ...' if len(left_out) > 5 else ''}. Wrap what holds these too, or none: the "
            "strategy then wraps all."
        )


def check_optimization(is_automatic: bool) -> None:
    """Refuses manual optimization if the whole LightningModule is sharded.

    Args:
        is_automatic: `automatic_optimization` of the module.

    Raises:
        MisconfigurationException: Backward would run within the forward of what is sharded.
    """
    if not is_automatic:
        raise MisconfigurationException(
            "With automatic_optimization=False, backward runs in training_step, and so within the "
            "forward of the module that FSDP has in shards, which torch refuses. Wrap its layers "
            "alone, in configure_model with torch.distributed.fsdp.wrap.wrap, or pass "
            "strategy='ddp'."
        )


def _is_hybrid(sharding: ShardingStrategy) -> bool:
    return "HYBRID" in sharding.name


def _check_mesh(mesh: tuple[int, ...] | DeviceMesh, sharding: ShardingStrategy) -> None:
    sizes = tuple(mesh.mesh.shape) if isinstance(mesh, DeviceMesh) else tuple(mesh)
    typed = f"FSDPStrategy(device_mesh={sizes}, sharding_strategy={sharding.name!r})"
    if isinstance(mesh, DeviceMesh) and mesh.device_type != "hpu":
        raise MisconfigurationException(
            f"{typed} is a mesh of {mesh.device_type!r} devices. Pass its sizes alone, or a mesh "
            "from init_device_mesh('hpu', ...)."
        )
    if _is_hybrid(sharding) != (len(sizes) == 2) or len(sizes) > 2:
        # torch would shard over the first axis, and average nothing over the second.
        raise MisconfigurationException(
            f"{typed}: two sizes, of copies and of shards, go with 'HYBRID_SHARD' and with nothing "
            "else. Pass sharding_strategy='HYBRID_SHARD' and two sizes, or leave device_mesh out."
        )
    if _is_hybrid(sharding) and sizes[1] == 1:
        # torch would average no gradients at all (2.13, `fsdp/_init_utils.py`).
        raise MisconfigurationException(
            f"{typed} leaves each card a whole copy, since the last size is that of the cards that "
            "share one. Pass a larger one, or strategy='ddp'."
        )


def _make_mesh(mesh: tuple[int, ...] | DeviceMesh) -> DeviceMesh:
    if not isinstance(mesh, DeviceMesh):
        num_cards = torch.Size(mesh).numel()
        _check_size(tuple(mesh), num_cards)
        return init_device_mesh("hpu", tuple(mesh))
    _check_size(tuple(mesh.mesh.shape), mesh.size())
    return mesh


def _check_size(sizes: tuple[int, ...], num_cards: int) -> None:
    if num_cards != dist.get_world_size():
        raise MisconfigurationException(
            f"FSDPStrategy(device_mesh={sizes}) is of {num_cards} cards, but devices and num_nodes "
            f"ask for {dist.get_world_size()}. Pass sizes whose product is that."
        )


_ROOT = "_lightning_gaudi_fsdp"
"""The attribute of a model that holds the wrapper of an earlier run, and its settings."""


class _Root:
    """Holds the wrapper of a model; copies and pickles of the model get an empty one."""

    def __init__(self, module: Module | None = None, **settings: Any) -> None:
        self.module = module
        self.settings = settings

    # A copy of the model is not sharded, and a copy of the wrapper would hold the weights twice.
    def __deepcopy__(self, memo: Any) -> _Root:
        return _Root()

    def __reduce__(self) -> Any:
        return _Root, ()


def earlier_root(model: Module, settings: dict[str, Any]) -> Module | None:
    """Returns the wrapper in which an earlier run has left `model`; None if it is not sharded.

    A model stays sharded after a run. Lightning would take the wrapped layers in it for the user's
    own wrapping, and leave out the layers that were sharded with the root (2.6.6,
    `strategies/fsdp.py`).

    Args:
        model: The user's.
        settings: How it is to be sharded now, by the names that a user knows.

    Raises:
        MisconfigurationException: It was sharded in another way.
    """
    if not was_sharded(model):
        return None
    root: _Root = vars(model)[_ROOT]
    for name, value in settings.items():
        if value != root.settings[name]:
            raise MisconfigurationException(
                f"This model was put into shards with {name}={root.settings[name]!r} by an earlier "
                f"run, and now has {name}={value!r}. Pass the same, or load a checkpoint into a "
                "new one."
            )
    return root.module


def was_sharded(model: Module | None) -> bool:
    """Returns whether an earlier run of this process has sharded the model."""
    root = None if model is None else vars(model).get(_ROOT)
    return root is not None and root.module is not None


def keep_root(model: Module, root: Module, settings: dict[str, Any]) -> None:
    """Keeps the wrapper for `earlier_root`, outside of state dicts and copies of the model."""
    # Past `Module.__setattr__`, which would register the wrapper as a child of its own child.
    vars(model)[_ROOT] = _Root(root, **settings)
