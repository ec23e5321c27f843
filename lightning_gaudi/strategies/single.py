"""`SingleHPUStrategy`: training on one card."""

from __future__ import annotations

from lightning.fabric.plugins import CheckpointIO, ClusterEnvironment
from lightning.fabric.strategies.registry import _StrategyRegistry
from lightning.fabric.utilities.types import _DEVICE
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from typing_extensions import override

from lightning_gaudi._core.tied_weights import kept_tied

from ..conversion import to_hpu_device
from ..distributed import DEVICE, check_alone, select_card
from .base import HPUStrategy


class SingleHPUStrategy(SingleDeviceStrategy, HPUStrategy):
    """Training on one card: `Trainer(strategy="hpu_single")`, and what `"auto"` gives on one."""

    strategy_name = "hpu_single"

    card = DEVICE
    """Which of the machine's cards this process drives; it sees it as `hpu:0`."""

    # Lightning sets it where it finds it.
    cluster_environment: ClusterEnvironment | None = None

    def __init__(
        self,
        device: _DEVICE = "hpu",
        accelerator: Accelerator | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision_plugin: Precision | None = None,
    ) -> None:
        """Create the strategy; the Trainer sets what is left out.

        Args:
            device: The HPU of this process; there is one, `hpu:0`.
            accelerator: An `HPUAccelerator`.
            checkpoint_io: An `HPUCheckpointIO` by default.
            precision_plugin: An `HPUPrecisionPlugin`.

        Raises:
            ValueError: The device is not an HPU.
        """
        super().__init__(
            device=to_hpu_device(device),
            accelerator=accelerator,
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
        )

    @override
    def become_hpu(self, typed: str) -> None:
        """Put it on the HPU: Lightning's may be on the CPU by default."""
        super().become_hpu(typed)
        self._root_device = DEVICE

    @override
    def setup_environment(self) -> None:
        """Choose the card, then prepare it."""
        check_alone(self.cluster_environment)
        select_card([self.card], local_rank=0)
        super().setup_environment()

    @override
    def model_to_device(self) -> None:
        """Move the model, and tie again the weights that were tied before."""
        with kept_tied(self.model):
            super().model_to_device()

    @classmethod
    @override
    def register_strategies(cls, strategy_registry: _StrategyRegistry) -> None:
        """Make the name known to Lightning."""
        strategy_registry.register(cls.strategy_name, cls, description=cls.__name__)
