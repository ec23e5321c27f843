"""What all rooms stand on: the vendor's package, processes, the cache; nothing knows Lightning.

A process has one of each, whichever of Lightning's namespaces it uses.
"""

import atexit
from collections.abc import Callable

_last: list[Callable[[], object]] = []


def call_last(function: Callable[[], object]) -> None:
    """Calls a function as the program ends, after what the vendor's package does then.

    That destroys all process groups which somebody still holds, and waits for all ranks: whoever
    waited for one of them to end before would wait for ever.

    Source: Intel Gaudi PyTorch bridge 1.19, `backend/habana_device/hpu_cached_devices.cpp`,
    `HPUDevice.cpp` (the handler is registered when the device is acquired).
    """
    _last.append(function)


# Handlers run in reverse order. This package is imported before any device is used.
@atexit.register
def _run() -> None:
    while _last:
        _last.pop()()
