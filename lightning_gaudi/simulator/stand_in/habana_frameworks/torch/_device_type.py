"""The driver's name for the card's type."""

from __future__ import annotations

import enum

from ._card import card


class synDeviceType(enum.IntEnum):  # noqa: N801 (the vendor's name)
    """The driver's device types, those that can be simulated."""

    synDeviceGaudi = 1
    synDeviceGaudi2 = 4
    synDeviceGaudi3 = 5


def _get_device_type() -> synDeviceType:
    """Returns the card's type."""
    return synDeviceType[f"syn{card().device_name.replace('GAUDI', 'DeviceGaudi')}"]


def is_gaudi3() -> bool:
    """Returns whether the card is a Gaudi 3, which is not asked of the card itself."""
    return _get_device_type() == synDeviceType.synDeviceGaudi3
