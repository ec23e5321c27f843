"""The user's choice of strategy in its form for the HPU."""

from __future__ import annotations

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import SingleDeviceStrategy, Strategy

from .single import SingleHPUStrategy


def to_hpu_strategy(strategy: str | Strategy) -> Strategy:
    """The HPU's form of what was passed as `Trainer(strategy=...)`.

    Args:
        strategy: A registered name, or an instance; an instance keeps its plugins.

    Raises:
        MisconfigurationException: It has no such form.
    """
    if isinstance(strategy, SingleHPUStrategy):
        return strategy
    if strategy in (SingleHPUStrategy.strategy_name, SingleDeviceStrategy.strategy_name):
        return SingleHPUStrategy()
    # A subclass may rely on another device; only what Lightning itself offers is taken over.
    if type(strategy) is SingleDeviceStrategy and strategy.root_device.type in ("cpu", "hpu"):
        # The user's own object, with the plugins in it, goes on as ours.
        strategy.__class__ = SingleHPUStrategy
        strategy._root_device = torch.device("hpu", 0)
        return strategy
    raise MisconfigurationException(
        f"strategy={_typed(strategy)} does not train on accelerator='hpu' in this version, which "
        f"drives one card. Pass strategy='auto' or {SingleHPUStrategy.strategy_name!r}, or derive "
        "your strategy from lightning_gaudi.SingleHPUStrategy."
    )


def _typed(strategy: str | Strategy) -> str:
    if isinstance(strategy, str):
        return repr(strategy)
    device = getattr(strategy, "_root_device", None)
    return f"{type(strategy).__name__}({'' if device is None else f'device={str(device)!r}'})"
