"""Device type and precision queries."""

from __future__ import annotations

import enum

from ...._missing import missing
from ..._card import card


class synDeviceType(enum.IntEnum):  # noqa: N801 (the vendor's name)
    """The driver's device types, those that can be simulated."""

    synDeviceGaudi = 1
    synDeviceGaudi2 = 4
    synDeviceGaudi3 = 5


_TYPES = {
    "GAUDI": synDeviceType.synDeviceGaudi,
    "GAUDI2": synDeviceType.synDeviceGaudi2,
    "GAUDI3": synDeviceType.synDeviceGaudi3,
}


def _get_device_type() -> synDeviceType:
    """The card's type."""
    return _TYPES[card().device_name]


def _is_fp16_supported() -> bool:
    """Whether the card computes in half precision: every generation but the first."""
    return _get_device_type() != synDeviceType.synDeviceGaudi


def _set_profiler_tracer_memory(device_id: int) -> None:
    """Trace memory in the profiler; the simulated HPU has no profiler."""


__getattr__ = missing(__name__)
