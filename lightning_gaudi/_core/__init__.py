"""The base of all other packages: the vendor's package, processes, memory, precision, workers.

Nothing here knows Lightning's classes. A process has each module once, whichever of Lightning's
namespaces it uses.
"""

import atexit
from collections.abc import Callable

_last: list[Callable[[], object]] = []


def call_last(function: Callable[[], object]) -> None:
    """Calls a function at the end of the program, after the handlers of the vendor's package.

    The vendor's handler destroys all process groups that are still held, and waits for all ranks.
    A function that waited for another rank to end before that would wait for ever.

    Source: Intel Gaudi PyTorch bridge 1.19, `backend/habana_device/hpu_cached_devices.cpp`,
    `HPUDevice.cpp` (the handler is registered when the device is acquired).
    """
    _last.append(function)


# Handlers run in reverse order. This package is imported before any device is used.
@atexit.register
def _run() -> None:
    while _last:
        _last.pop()()
