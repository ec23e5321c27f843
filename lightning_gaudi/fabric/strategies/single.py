"""`SingleHPUStrategy`, which trains on one card with Fabric."""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric.accelerators.accelerator import Accelerator
from lightning.fabric.plugins import CheckpointIO, Precision
from lightning.fabric.strategies.single_device import SingleDeviceStrategy
from lightning.fabric.utilities.types import _DEVICE
from torch.nn import Module
from typing_extensions import override

from ...distributed.devices import select_card, to_hpu_device
from ...distributed.process_group import check_alone
from ...distributed.strategy import SingleMixin
from .base import HPUStrategy


class SingleHPUStrategy(SingleMixin, HPUStrategy, SingleDeviceStrategy):
    """Trains on one card: `Fabric(strategy="hpu_single")`, and `"auto"` on one card."""

    def __init__(
        self,
        device: _DEVICE = "hpu",
        accelerator: Accelerator | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision: Precision | None = None,
        compile: Any = None,
        reliability: Any = None,
    ) -> None:
        """Creates the strategy; Fabric sets what is left out.

        Args:
            device: The HPU of this process; there is one, `hpu:0`.
            accelerator: An `HPUAccelerator`.
            checkpoint_io: An `HPUCheckpointIO` by default.
            precision: An `HPUPrecision`.
            compile: What is compiled in eager mode; see `HPUMixin`.
            reliability: What protects the run when something fails; see `HPUMixin`.

        Raises:
            ValueError: The device is not an HPU, or an argument has a value that is not known.
        """
        super().__init__(
            device=to_hpu_device(device),
            accelerator=accelerator,
            checkpoint_io=checkpoint_io,
            precision=precision,
            compile=compile,
            reliability=reliability,
        )

    def choose_card(self, card: torch.device) -> None:
        """Binds this process to a card at once, since `launch` need not be called for one card."""
        super().choose_card(card)
        select_card([card], local_rank=0)

    @override
    def module_to_device(self, module: Module) -> None:
        """Moves the module, and keeps its tied weights tied."""
        check_alone(self.cluster_environment)
        self._move(module)
