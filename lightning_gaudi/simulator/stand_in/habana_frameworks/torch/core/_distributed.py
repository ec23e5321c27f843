"""Wraps `init_process_group` and `new_group` as the vendor does, with each release's arguments.

`barrier` is wrapped, too, which the vendor does without.

Sources: Intel Gaudi PyTorch bridge, `core/torch_overwrites.py` of 1.19, of 2025 and of 1.24.0;
`habana_eager/ops/empty.cpp` and `pytorch_helpers/lazy_to_backend.cpp` of 1.19.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed import constants

from ..._release import release
from .. import _on_import
from ..internal import bridge_config

_TIMEOUT = datetime.timedelta(minutes=30)


def overwrite() -> None:
    """Replaces the functions of `torch.distributed`, if this torch has it."""
    if torch.distributed.is_available():
        dist, number = torch.distributed, release().number
        wrap_init = _wrap_init_with_device if number >= 122 else _wrap_init
        wrap_group = _wrap_new_group_with_device if number >= 124 else _wrap_new_group
        dist.init_process_group = wrap_init(dist.init_process_group)
        dist.new_group = wrap_group(dist.new_group)
        dist.barrier = _wrap_barrier(dist.barrier)
        _on_import.call_after("torch.distributed.tensor._random", f"{__package__}._dtensor")


def _wrap_init(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init_process_group(
        backend: str | None = None,
        init_method: str | None = None,
        timeout: datetime.timedelta | None = _TIMEOUT,
        world_size: int = -1,
        rank: int = -1,
        store: Any = None,
        group_name: str = "",
        pg_options: Any = None,
    ) -> None:
        timeout = timeout or _TIMEOUT
        original(backend, init_method, timeout, world_size, rank, store, group_name, pg_options)

    return init_process_group


def _wrap_init_with_device(original: Callable[..., None]) -> Callable[..., None]:
    plain = _wrap_init(original)

    @functools.wraps(original)
    def init_process_group(
        backend: str | None = None,
        init_method: str | None = None,
        timeout: datetime.timedelta | None = _TIMEOUT,
        world_size: int = -1,
        rank: int = -1,
        store: Any = None,
        group_name: str = "",
        pg_options: Any = None,
        device_id: Any = None,
    ) -> None:
        given = (backend, init_method, timeout or _TIMEOUT, world_size, rank, store, group_name)
        if device_id is None or not _is_cached(backend):
            plain(*given, pg_options)
        else:
            original(*given, pg_options, _with_index(device_id))

    return init_process_group


def _is_cached(backend: str | None) -> bool:
    """Returns whether the vendor's cache of groups is used, which alone hands a device on."""
    is_hccl = backend is None or "hccl" in backend
    return is_hccl and bridge_config.get_pt_enable_comm_group_cache()


def _with_index(device: Any) -> Any:
    is_bare = isinstance(device, torch.device) and device == torch.device("hpu")
    return torch.device("hpu", 0) if is_bare and release().number >= 124 else device


def _wrap_new_group(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def new_group(
        ranks: Sequence[int] | None = None,
        timeout: datetime.timedelta | None = constants.default_pg_timeout,
        backend: str | None = None,
        pg_options: Any = None,
    ) -> Any:
        return original(ranks, timeout, backend, pg_options)

    return new_group


def _wrap_new_group_with_device(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def new_group(
        ranks: Sequence[int] | None = None,
        timeout: datetime.timedelta | None = constants.default_pg_timeout,
        backend: str | None = None,
        pg_options: Any = None,
        use_local_synchronization: bool = False,
        group_desc: str | None = None,
        device_id: Any = None,
    ) -> Any:
        # Passed only if given: torch of release 1.24 takes it, but not every one that runs here.
        device = {} if device_id is None else {"device_id": device_id}
        return original(
            ranks, timeout, backend, pg_options, use_local_synchronization, group_desc, **device
        )

    return new_group


def _wrap_barrier(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `barrier` to meet on the one card of the process, whatever `device_ids` says."""

    @functools.wraps(original)
    def barrier(
        group: Any = None, async_op: bool = False, device_ids: Any = None, **more: Any
    ) -> Any:
        # torch makes a tensor on the first of the devices, which accelerate takes from the local
        # rank. The bridge knows no other index than 0 and makes the tensor on its card; ours would
        # refuse it.
        is_list = isinstance(device_ids, list) and device_ids
        return original(group, async_op, [0] if is_list else device_ids, **more)

    return barrier
