"""Answers what the card says about itself."""

from __future__ import annotations

from ..._missing import missing
from ..._release import release
from .. import _card
from .._device_type import _get_device_type
from ._lifecycle import init
from ._utils import Device, _get_device_index, checked_index
from .memory import memory_stats


def get_device_name(device: Device = None) -> str:
    """Returns the card's name: "GAUDI", "GAUDI2" or "GAUDI3"."""
    init()
    checked_index(device)
    return _card.card().device_name


def get_device_capability(device: Device = None) -> str:
    """Returns the driver's version as a text; here it is that of the simulated release."""
    init()
    checked_index(device)
    return release().version


def get_device_properties(device: Device = None) -> str:
    """Returns the card's properties in the vendor's form: a string, not an object."""
    size = memory_stats(device)["Limit"]
    return (
        f"(sramBaseAddress=0, dramBaseAddress=0, sramSize=0, dramSize={size}, "
        f"tpcEnabledMask=0, dramEnabled=1, fd=0, device_id={checked_index(device)}, "
        f"device_type={int(_get_device_type())})"
    )


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Returns whether two cards of the server exchange data directly: all do.

    Raises:
        AssertionError: A card does not exist, or both are the same.
    """
    checked_index(device)
    checked_index(peer_device)
    if _get_device_index(device, optional=True) == _get_device_index(peer_device, optional=True):
        raise AssertionError(f"Got the same device twice, {device!r}. Pass two different ones.")
    return True


def get_arch_list() -> list[str]:
    """Returns the architectures that the library is built for: the card's name."""
    return [get_device_name()]


def get_gencode_flags() -> str:
    """Returns the flags for generating code: none."""
    return ""


__getattr__ = missing(__name__)
