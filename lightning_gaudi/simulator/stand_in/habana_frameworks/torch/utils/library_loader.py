"""Offers what older Gaudi scripts call to find and load the device."""

from ..._missing import missing
from .._binding import C


def is_habana_available() -> bool:
    """Returns whether this machine has a card; here, whether the simulator has one."""
    return C.device_count() > 0


def load_habana_module() -> None:
    """Loads the device's libraries; importing this package has done it."""


__getattr__ = missing(__name__)
