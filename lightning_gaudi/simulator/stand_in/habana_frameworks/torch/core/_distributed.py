"""The vendor's wrappers of `init_process_group` and `new_group`: they take fewer arguments."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed import constants

from .. import _on_import


def overwrite() -> None:
    """Replace the functions of `torch.distributed`, if this torch has it."""
    if torch.distributed.is_available():
        dist = torch.distributed
        dist.init_process_group = _wrap_init_process_group(dist.init_process_group)
        dist.new_group = _wrap_new_group(dist.new_group)
        _on_import.call_after("torch.distributed.tensor._random", f"{__package__}._dtensor")


def _wrap_init_process_group(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init_process_group(
        backend: str | None = None,
        init_method: str | None = None,
        timeout: datetime.timedelta | None = None,
        world_size: int = -1,
        rank: int = -1,
        store: Any = None,
        group_name: str = "",
        pg_options: Any = None,
        **unsupported: Any,
    ) -> None:
        _refuse("init_process_group", unsupported)
        original(
            backend=backend,
            init_method=init_method,
            timeout=timeout or datetime.timedelta(minutes=30),
            world_size=world_size,
            rank=rank,
            store=store,
            group_name=group_name,
            pg_options=pg_options,
        )

    return init_process_group


def _wrap_new_group(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def new_group(
        ranks: Sequence[int] | None = None,
        timeout: datetime.timedelta | None = constants.default_pg_timeout,
        backend: str | None = None,
        pg_options: Any = None,
        **unsupported: Any,
    ) -> Any:
        _refuse("new_group", unsupported)
        return original(ranks, timeout, backend, pg_options)

    return new_group


def _refuse(function: str, unsupported: dict[str, Any]) -> None:
    if unsupported:
        got = ", ".join(f"{name}={value!r}" for name, value in unsupported.items())
        raise TypeError(
            f"torch.distributed.{function}() as Gaudi's package wraps it (1.19) does not take "
            f"{got}. Leave it out."
        )
