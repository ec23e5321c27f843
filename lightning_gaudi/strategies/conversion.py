"""The user's choice of strategy in its form for the HPU."""

from __future__ import annotations

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import (
    DDPStrategy,
    SingleDeviceStrategy,
    Strategy,
    StrategyRegistry,
)

from lightning_gaudi.reparent import reparent

from ..distributed import DEVICE, check_start_method, checked_backend
from .base import HPUStrategy
from .ddp import HPUDDPStrategy
from .single import SingleHPUStrategy

_FORMS: dict[type[Strategy], type[Strategy]] = {
    DDPStrategy: HPUDDPStrategy,
    SingleDeviceStrategy: SingleHPUStrategy,
}
"""Lightning's strategies and ours that extend them."""

NAMES = "'auto', 'hpu_ddp', 'hpu_single', a 'ddp' name of Lightning's"
"""What may be passed as strategy, for messages."""


def to_hpu_strategy(strategy: str | Strategy) -> Strategy:
    """The HPU's form of what was passed as `Trainer(strategy=...)`.

    Args:
        strategy: A registered name, or an instance; an instance stays the user's object, and keeps
            its arguments and plugins.

    Raises:
        MisconfigurationException: It has no such form, or arguments that an HPU cannot honour.
    """
    typed = _typed(strategy)
    # By name: some of Lightning's ask for their library as soon as they are made.
    kind = StrategyRegistry[strategy]["strategy"] if isinstance(strategy, str) else type(strategy)
    base = _lightning_base(kind)
    if not issubclass(kind, HPUStrategy) and (base not in _FORMS or not _is_movable(strategy)):
        raise MisconfigurationException(
            f"strategy={typed} does not train on accelerator='hpu' in this version. Pass {NAMES}, "
            "or derive your strategy from lightning_gaudi.HPUDDPStrategy or SingleHPUStrategy."
        )
    found = StrategyRegistry.get(strategy) if isinstance(strategy, str) else strategy
    if not issubclass(kind, HPUStrategy):
        reparent(found, base, _FORMS[base])
    if isinstance(found, HPUDDPStrategy):
        checked_backend(found._process_group_backend)
        check_start_method(found._start_method, typed)
    elif isinstance(found, SingleHPUStrategy):
        found._root_device = DEVICE
    return found


def _lightning_base(kind: type[Strategy]) -> type[Strategy]:
    """The class of Lightning's that `kind` is or extends."""
    return next(base for base in kind.__mro__ if base.__module__.startswith("lightning.pytorch."))


def _is_movable(strategy: str | Strategy) -> bool:
    """Whether it is on no other device than the HPU, or on the CPU by default."""
    device: torch.device | None = getattr(strategy, "_root_device", None)
    return device is None or device.type in ("cpu", "hpu")


def _typed(strategy: str | Strategy) -> str:
    if isinstance(strategy, str):
        return repr(strategy)
    device = getattr(strategy, "_root_device", None)
    return f"{type(strategy).__name__}({'' if device is None else f'device={str(device)!r}'})"
