"""`SingleHPUStrategy`: Fabric on one card."""

from __future__ import annotations

import torch
from lightning.fabric.accelerators.accelerator import Accelerator
from lightning.fabric.plugins import CheckpointIO, ClusterEnvironment, Precision
from lightning.fabric.strategies.registry import _StrategyRegistry
from lightning.fabric.strategies.single_device import SingleDeviceStrategy
from lightning.fabric.utilities.types import _DEVICE
from torch.nn import Module
from typing_extensions import override

from ...conversion import to_hpu_device
from ...distributed import DEVICE, check_alone, select_card
from .base import HPUStrategy


class SingleHPUStrategy(SingleDeviceStrategy, HPUStrategy):
    """One card: `Fabric(strategy="hpu_single")`, and what `"auto"` gives on one."""

    strategy_name = "hpu_single"

    _card = DEVICE

    def __init__(
        self,
        device: _DEVICE = "hpu",
        accelerator: Accelerator | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision: Precision | None = None,
    ) -> None:
        """Create the strategy; Fabric sets what is left out.

        Args:
            device: The HPU of this process; there is one, `hpu:0`.
            accelerator: An `HPUAccelerator`.
            checkpoint_io: An `HPUCheckpointIO` by default.
            precision: An `HPUPrecision`.

        Raises:
            ValueError: The device is not an HPU.
        """
        super().__init__(
            device=to_hpu_device(device),
            accelerator=accelerator,
            checkpoint_io=checkpoint_io,
            precision=precision,
        )

    # Lightning sets it where it finds it.
    cluster_environment: ClusterEnvironment | None = None

    @property
    def card(self) -> torch.device:
        """Which of the machine's cards this process drives; it sees it as `hpu:0`.

        Fabric sets it, and it is chosen at once: with one card nobody needs to call `launch`.
        """
        return self._card

    @card.setter
    def card(self, card: torch.device) -> None:
        select_card([card], local_rank=0)
        self._card = card

    @override
    def become_hpu(self, typed: str) -> None:
        """Put it on the HPU: Lightning's may be on the CPU by default."""
        super().become_hpu(typed)
        self._root_device = DEVICE

    @override
    def module_to_device(self, module: Module) -> None:
        """Move the module, with its tied weights tied."""
        check_alone(self.cluster_environment)
        self._move(module)

    @classmethod
    @override
    def register_strategies(cls, strategy_registry: _StrategyRegistry) -> None:
        """Make the name known to Lightning."""
        strategy_registry.register(cls.strategy_name, cls, description=cls.__name__)
