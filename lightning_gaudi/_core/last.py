"""What is done last as the program ends, after what the vendor's package does.

That destroys all process groups which somebody still holds, and waits for all ranks: whoever
waited for one of them to end before would wait for ever. Handlers of `atexit` run in reverse order,
and this module is imported before any device is used.

Source: Intel Gaudi PyTorch bridge 1.19, `backend/habana_device/hpu_cached_devices.cpp`,
`HPUDevice.cpp` (the handler is registered when the device is acquired).
"""

from __future__ import annotations

import atexit
from collections.abc import Callable

_functions: list[Callable[[], object]] = []


def register(function: Callable[[], object]) -> None:
    """Calls a function last."""
    _functions.append(function)


@atexit.register
def _run() -> None:
    while _functions:
        _functions.pop()()
