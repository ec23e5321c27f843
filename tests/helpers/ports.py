"""Ports for what tests start, of which the kernel gives none to sockets that ask for no port."""

from __future__ import annotations

import random
from pathlib import Path

from lightning_gaudi._core.launched import why_not_listen

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST = 10_000


def free_port() -> int:
    """A port that was free a moment ago, and that no other test is likely to draw."""
    end = int(_EPHEMERAL.read_text().split()[0])
    ports = random.SystemRandom().sample(range(_FIRST, end), k=min(1000, end - _FIRST))
    return next(port for port in ports if why_not_listen(port) is None)
