"""Names the card's type as the driver does."""

from __future__ import annotations

import enum

from ._card import card


class synDeviceType(enum.IntEnum):  # noqa: N801 (the vendor's name)
    """The driver's device types that can be simulated."""

    synDeviceGaudi = 1
    synDeviceGaudi2 = 4
    synDeviceGaudi3 = 5


def _get_device_type() -> synDeviceType:
    """Returns the card's type."""
    return synDeviceType[f"syn{card().device_name.replace('GAUDI', 'DeviceGaudi')}"]


def is_gaudi3() -> bool:
    """Returns whether the simulated card is a Gaudi 3, without taking a card."""
    return _get_device_type() == synDeviceType.synDeviceGaudi3
