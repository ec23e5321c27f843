"""Registers the "hccl" backend of torch.distributed, and finds out which rank this process is.

Importing it does both, and sets variables for the rank, as the vendor's does (releases 1.19 and
1.24.0, `distributed/hccl/__init__.py`).
"""

from __future__ import annotations

import atexit
import os
from typing import Any

import torch

from lightning_gaudi.untrusted import read_integer

from ...._missing import missing
from ..._binding import C
from ...hpu import HABANA_VISIBLE_MODULES_VAR, HLS_MODULE_ID_VAR
from ...utils.experimental.distributed_emulation import (
    distributed_emulation_apply_if_enabled,
    is_distributed_emulation_enabled,
)
from ...utils.internal import is_lazy

ProcessGroupHCCL = C.ProcessGroupHCCL
__all__ = [
    "HABANA_VISIBLE_MODULES_VAR",
    "HLS_MODULE_ID_VAR",
    "ProcessGroupHCCL",
    "distributed_emulation_apply_if_enabled",
    "initialize_distributed_hpu",
    "is_distributed_emulation_enabled",
]

_FROM_MPI = {
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "RANK": "OMPI_COMM_WORLD_RANK",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
}


def initialize_distributed_hpu(
    world_size: int | None = None, rank: int | None = None, local_rank: int | None = None
) -> tuple[int, int, int]:
    """Finds this process's ranks and selects its card, through environment variables.

    With all three arguments they become WORLD_SIZE, RANK and LOCAL_RANK; else those variables are
    taken, or Open MPI's, and without either MASTER_ADDR and MASTER_PORT get defaults. Sets
    HLS_MODULE_ID for a process of several, and ID.

    Args:
        world_size: Number of processes.
        rank: This process among all.
        local_rank: This process on its server.

    Returns:
        World size, rank and local rank; 1, -1, -1 if this is not one of several processes.

    Raises:
        AssertionError: The local rank has no visible module.
    """
    if world_size is not None and rank is not None and local_rank is not None:
        os.environ["WORLD_SIZE"] = str(world_size)
        os.environ["RANK"] = str(rank)
        os.environ["LOCAL_RANK"] = str(local_rank)
    else:
        _take_from_mpi()
    found = tuple(
        read_integer(name, default, at_least=-1)
        for name, default in (("WORLD_SIZE", 1), ("RANK", -1), ("LOCAL_RANK", -1))
    )
    _select_module(world_size=found[0], local_rank=found[2])
    if found[1] != -1:
        os.environ["ID"] = str(found[1])
    return found


def _take_from_mpi() -> None:
    if all(name in os.environ for name in _FROM_MPI):
        return
    if all(name in os.environ for name in _FROM_MPI.values()):
        for name, mpi_name in _FROM_MPI.items():
            os.environ[name] = os.environ[mpi_name]
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "12345")


def _select_module(world_size: int, local_rank: int) -> None:
    if HLS_MODULE_ID_VAR in os.environ or local_rank == -1 or world_size == 1 or C.is_dry():
        return
    module = str(local_rank)
    if visible := os.environ.get(HABANA_VISIBLE_MODULES_VAR):
        modules = visible.split(",")
        if local_rank >= len(modules):
            raise AssertionError(
                f"Local rank {local_rank} has no card: {HABANA_VISIBLE_MODULES_VAR}={visible} "
                f"names {len(modules)}. Start fewer processes or name more modules."
            )
        module = modules[local_rank]
    os.environ[HLS_MODULE_ID_VAR] = module


def _create_process_group(options: Any, backend_options: Any) -> Any:
    """Builds the backend: HCCL's interface on HPU tensors over a gloo group.

    Args:
        options: torch's DistributedBackendOptions.
        backend_options: The user's `pg_options`; the vendor takes none.
    """
    gloo = torch.distributed.ProcessGroupGloo(
        options.store, options.group_rank, options.group_size, timeout=options.timeout
    )
    return C.ProcessGroupHCCL(gloo, options.store, options.group_rank, options.group_size)


def _destroy_all(pid: int) -> None:
    """Destroys all process groups as the program ends; each waits for all of its ranks.

    Source: releases 1.19 and 1.24.0, `distributed/hccl/process_group_registry.hpp` (`cleanup`),
    `backend/habana_device/hpu_cached_devices.cpp`.
    """
    # A fork, such as a loader's worker, is no rank of the groups. Since Python 3.13 it runs the
    # exit handlers of a program, too.
    if os.getpid() != pid:
        return
    if torch.distributed.GroupMember.WORLD is not None:
        torch.distributed.destroy_process_group()
    C.destroy_process_groups()


def _register() -> None:
    if torch.distributed.is_available():
        if C.is_dry():
            from ._alone import pretend

            pretend()
        atexit.register(_destroy_all, os.getpid())
        torch.distributed.Backend.register_backend(
            "hccl", _create_process_group, devices=["hpu"], extended_api=True
        )
        from ._coalescing import forgetting_failures

        manager = forgetting_failures(torch.distributed._coalescing_manager)
        torch.distributed._coalescing_manager = manager
        torch.distributed.distributed_c10d._coalescing_manager = manager


def _has_lazy_collectives() -> bool:
    """Returns whether collectives are part of lazy graphs; by default each ends the one before."""
    value = os.environ.get("PT_HPU_ENABLE_LAZY_COLLECTIVES", "False")
    return is_lazy() and value.lower() in ("true", "1")


distributed_emulation_apply_if_enabled()
C.set_lazy_collectives(_has_lazy_collectives())
_register()
initialize_distributed_hpu()
__getattr__ = missing(__name__)
