"""`HPUAccelerator`, by which Fabric finds and starts the cards."""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric.accelerators.accelerator import Accelerator
from lightning.fabric.accelerators.registry import _AcceleratorRegistry
from lightning.fabric.utilities.exceptions import MisconfigurationException
from typing_extensions import override

from lightning_gaudi._core import vendor
from lightning_gaudi.attention import switch

from ..distributed.devices import parse_devices


def require_card(accelerator: Any) -> None:
    """Raises with the reason if there is no card.

    Args:
        accelerator: As the user passed it.

    Raises:
        MisconfigurationException: There is none.
    """
    if HPUAccelerator.is_available():
        return
    is_name = isinstance(accelerator, str)
    typed = repr(accelerator) if is_name else f"{type(accelerator).__name__}()"
    raise MisconfigurationException(
        f"accelerator={typed} needs an Intel Gaudi card, but {vendor.unavailable_reason()}, and no "
        "simulator was asked for. Run on a machine with Gaudi and its software, or simulate a "
        "card: set LIGHTNING_GAUDI_SIMULATE=1 before Python starts, or start the program with "
        "`lightning-gaudi simulate -- python ...`."
    )


class HPUAccelerator(Accelerator):
    """An Intel Gaudi card, in PyTorch's words an HPU: `Fabric(accelerator="hpu")`."""

    @override
    def setup_device(self, device: torch.device) -> None:
        """Starts the device of this process, seeds it, and fuses attention on it.

        Raises:
            MisconfigurationException: It is not an HPU.
            ValueError: LIGHTNING_GAUDI_FUSED_ATTENTION is neither 1 nor 0.
        """
        if device.type != "hpu":
            raise MisconfigurationException(
                f"HPUAccelerator was given the device {device!s}. Pass strategy='auto' or a "
                "strategy on the device 'hpu'."
            )
        switch.switch_on_by_default()
        vendor.init()
        vendor.seed_if_due()

    @override
    def teardown(self) -> None:
        """Does nothing, since the vendor's driver releases the card at the end of the process."""

    @staticmethod
    @override
    def parse_devices(devices: Any) -> list[int]:
        """Returns the cards that `devices` names; see `devices.parse_devices`."""
        return parse_devices(devices)

    @staticmethod
    @override
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        """Returns the card of each process; the process itself sees its card as `hpu:0`."""
        return [torch.device("hpu", index) for index in devices]

    @staticmethod
    @override
    def auto_device_count() -> int:
        """Returns the number of cards of this machine that this job may use."""
        return vendor.num_visible_cards()

    @staticmethod
    @override
    def is_available() -> bool:
        """Returns whether this machine has a card, real or simulated."""
        return vendor.is_available()

    @staticmethod
    @override
    def name() -> str:
        """Returns `"hpu"`, the name for `accelerator`."""
        return "hpu"

    @staticmethod
    def get_device_name() -> str:
        """Returns `"GAUDI"`, `"GAUDI2"` or `"GAUDI3"`; acquires the card."""
        return vendor.device_name()

    @staticmethod
    def is_lazy() -> bool:
        """Returns whether operators collect in a graph (PT_HPU_LAZY_MODE=1) instead of running."""
        return vendor.is_lazy()

    @classmethod
    @override
    def register_accelerators(cls, accelerator_registry: _AcceleratorRegistry) -> None:
        """Registers the name with Lightning."""
        accelerator_registry.register(cls.name(), cls, description="Intel Gaudi (HPU)")
