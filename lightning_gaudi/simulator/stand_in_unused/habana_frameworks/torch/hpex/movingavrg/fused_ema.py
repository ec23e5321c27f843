"""Updates the moving average of a model by one operator."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Container

import torch

from ...._missing import missing
from ...core.step_closure import _mark_step_if_lazy

_RAMP = 2000


class FusedEMA:
    """A copy of a model, whose weights and buffers follow it slowly.

    Update t takes `ema = d * ema + (1 - d) * value` for every entry of the state_dict, with
    `d = decay * (1 - exp(-t / 2000))`: the first updates follow fast.

    Args:
        model: The model, or one in DistributedDataParallel or DataParallel; it is copied.
        decay: What the decay grows to.
        updates: How many updates were taken before.

    Raises:
        ValueError: The decay is negative.

    Source: Gaudi PyTorch bridge 1.19, hpex.movingavrg.FusedEMA.
    """

    def __init__(self, model: torch.nn.Module, decay: float = 0.9999, updates: float = 0) -> None:
        if not decay >= 0:
            raise ValueError(f"decay={decay} must be at least 0.")
        self.ema = copy.deepcopy(_unwrapped(model)).eval()
        self.decay: Callable[[float], float] = lambda t: decay * (1 - math.exp(-t / _RAMP))
        self.updates = updates
        self.updated_ema = list(self.ema.state_dict().values())

    def update(self, model: torch.nn.Module) -> None:
        """Moves the averages toward the model's values; in lazy mode in a graph of its own.

        Args:
            model: The model whose state_dict has the entries of the one that was copied.
        """
        _mark_step_if_lazy()
        self.updates += 1
        decay = torch.tensor([self.decay(self.updates)]).to("hpu", non_blocking=True)
        torch.ops.hpu.optimizer_ema(list(model.state_dict().values()), self.updated_ema, decay)
        _mark_step_if_lazy()

    def update_attr(
        self,
        model: torch.nn.Module,
        include: Container[str] = (),
        exclude: Container[str] = ("process_group", "reducer"),
    ) -> None:
        """Copies the model's attributes that have no leading underscore to the average.

        Args:
            model: The model.
            include: The only ones to copy; if empty, all.
            exclude: Those not to copy.
        """
        for name, value in vars(model).items():
            is_wanted = not include or name in include
            if is_wanted and not name.startswith("_") and name not in exclude:
                setattr(self.ema, name, value)


def _unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    wrappers = (torch.nn.parallel.DataParallel, torch.nn.parallel.DistributedDataParallel)
    return model.module if isinstance(model, wrappers) else model


__getattr__ = missing(__name__)
