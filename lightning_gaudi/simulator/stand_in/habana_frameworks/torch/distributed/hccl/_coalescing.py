"""Wraps torch's coalescing manager so that it leaves nothing behind when it fails.

torch (2.13) keeps its list of coalesced collectives: after an exception in its `with` every further
all_reduce of the group is recorded and never run, and no error says so.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch.distributed import distributed_c10d

from ..._binding import C

_Manager = Callable[..., contextlib.AbstractContextManager[Any]]


def forgetting_failures(manager: _Manager) -> _Manager:
    """Wraps torch's `_coalescing_manager`.

    Args:
        manager: With the parameters `group`, `device` and `async_ops`.

    Returns:
        The same; an exception in its `with`, or when that ends, ends the coalescing.
    """

    @functools.wraps(manager)
    @contextlib.contextmanager
    def wrapper(group: Any = None, device: Any = None, async_ops: bool = False) -> Iterator[Any]:
        group = group or distributed_c10d._get_default_group()
        # Another manager around this one has begun the coalescing, and ends it.
        if group in distributed_c10d._world.pg_coalesce_state:
            with manager(group, device, async_ops) as coalesced:
                yield coalesced
            return
        try:
            with manager(group, device, async_ops) as coalesced:
                yield coalesced
        except BaseException:
            distributed_c10d._world.pg_coalesce_state.pop(group, None)
            if device is not None:
                _abandon(group, device)
            raise

    return wrapper


def _abandon(group: Any, device: Any) -> None:
    # There may be no backend for such a device, which was then the failure itself.
    with contextlib.suppress(RuntimeError):
        backend = group._get_backend(device)
        if isinstance(backend, C.ProcessGroupHCCL):
            backend.abandon_coalescing()
