"""Handles Ctrl-C as the vendor's library does when it is loaded."""

from __future__ import annotations

import os

from .._release import release
from ._binding import C


def take_sigint() -> None:
    """Lets SIGINT end the process at once, as releases before 1.24 do.

    Seen in the source of 1.19, and not in that of 1.24.0; of those between nothing is known, and
    they are taken to be like the older one. `PT_HPU_ERROR_HANDLER=false` leaves it alone.

    Source: Intel Gaudi PyTorch bridge 1.19 and 1.24.0,
    `pytorch_helpers/habana_helpers/signal_handler.cpp`, `scripts/env_flags.yaml`.
    """
    wanted = os.environ.get("PT_HPU_ERROR_HANDLER", "true").lower() not in ("0", "false")
    if wanted and release().number < 124:
        C.take_sigint()
