"""Says whether there is a device, starts it and waits for it."""

from __future__ import annotations

from torch.utils.checkpoint import DefaultDeviceType

from .. import _events
from .._binding import C

_state = {"is_initialized": False}


def is_available() -> bool:
    """Returns whether there is a card; never raises."""
    return device_count() > 0


def device_count() -> int:
    """Returns the number of cards of the server, of which a process drives one; never raises."""
    return int(C.device_count())


def init() -> None:
    """Starts the device; calls that need it do so by themselves.

    Also makes "hpu" the default device of activation checkpointing, as the vendor does.
    """
    if not _state["is_initialized"]:
        _state["is_initialized"] = True
        DefaultDeviceType.set_device_type("hpu")
        _events.publish(_events.EventId.DEVICE_ACQUIRED, [])


# torch looks for this name in a device's module.
_lazy_init = init


def is_initialized() -> bool:
    """Returns whether the device was started, or has been given memory to keep."""
    return _state["is_initialized"] or C.memory_stats()["TotalSystemAllocs"] > 0


def current_device() -> int:
    """Returns the index of this process's device: 0."""
    init()
    return int(C.current_device())


def synchronize(device: object = None) -> None:
    """Waits for all work on the device; in lazy mode this breaks the graph.

    As with the vendor's, no other thread of Python runs meanwhile.

    Args:
        device: Unused; there is one. The vendor's 1.19 takes no argument, torch passes one.
    """
    init()
    C.synchronize()


def is_bf16_supported() -> bool:
    """Returns whether the device computes in bfloat16: always, if there is one."""
    return is_available()
