"""`SingleHPUStrategy`, which trains on one card."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.utilities.types import _DEVICE
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from typing_extensions import override

from lightning_gaudi._core import vendor
from lightning_gaudi._core.tied_weights import kept_tied

from ..distributed.devices import select_card, to_hpu_device
from ..distributed.process_group import check_alone
from ..distributed.strategy import SingleMixin
from .base import HPUStrategy


class SingleHPUStrategy(SingleMixin, HPUStrategy, SingleDeviceStrategy):
    """Trains on one card: `Trainer(strategy="hpu_single")`, and what `"auto"` chooses for one."""

    # A class attribute, since an instance of Lightning's own strategy may have become one of ours.
    _is_card_due = False

    def __init__(
        self,
        device: _DEVICE = "hpu",
        accelerator: Accelerator | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision_plugin: Precision | None = None,
        compile: Any = None,
        reliability: Any = None,
    ) -> None:
        """Creates the strategy; the Trainer sets what is left out.

        Args:
            device: The HPU of this process; there is one, `hpu:0`.
            accelerator: An `HPUAccelerator`.
            checkpoint_io: An `HPUCheckpointIO` by default.
            precision_plugin: An `HPUPrecisionPlugin`.
            compile: What is compiled in eager mode; see `HPUMixin`.
            reliability: What keeps the run when something fails; see there.

        Raises:
            ValueError: The device is not an HPU, or an argument has a value that is not known.
        """
        super().__init__(
            device=to_hpu_device(device),
            accelerator=accelerator,
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
            compile=compile,
            reliability=reliability,
        )

    @override
    def setup_environment(self) -> None:
        """Chooses the card, which `setup` acquires."""
        # Lightning calls `prepare_data` in between, which may find that there is nothing to train
        # on.
        check_alone(self.cluster_environment)
        select_card([self.card], local_rank=0)
        self._is_card_due = True
        vendor.seed_if_due()

    @contextmanager
    @override
    def tensor_init_context(self, empty_init: bool | None = None) -> Generator[None, None, None]:
        """Makes new tensors on the card, which is started for them."""
        self._start_card()
        with super().tensor_init_context(empty_init):
            yield

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        """Starts the card, and sets up the model on it."""
        self._start_card()
        super().setup(trainer)

    def _start_card(self) -> None:
        if self._is_card_due:
            self._is_card_due = False
            super().setup_environment()

    @override
    def model_to_device(self) -> None:
        """Moves the model, and ties again the weights that were tied before."""
        with kept_tied(self.model):
            super().model_to_device()
