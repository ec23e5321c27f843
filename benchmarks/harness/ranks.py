"""Processes that train together, of which each benchmark for several cards starts some itself."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from contextlib import ExitStack, suppress
from pathlib import Path

import torch

_FIRST_GIVEN = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
"""The first port that the kernel gives to a socket which asks for none."""


def become_rank(rank: int, num_ranks: int) -> None:
    """Have Lightning take this process for one of the ranks, with one thread and few words.

    It still needs `MASTER_PORT`.
    """
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_RANK": str(rank),
        "NODE_RANK": "0",
        # Lightning shares the cores among the processes of a node only where this is missing.
        "OMP_NUM_THREADS": "1",
    }
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)


def free_ports(count: int) -> list[int]:
    """Returns ports that were free a moment ago, and that nobody gets who asks for none.

    One of those that the kernel gives to sockets without a port of their own, as gloo's are, may be
    taken before its turn comes.
    """
    with ExitStack() as stack:
        found: list[int] = []
        for port in range(_FIRST_GIVEN - 1, 1024, -1):
            server = stack.enter_context(socket.socket())
            with suppress(OSError):
                server.bind(("", port))
                found.append(port)
            if len(found) == count:
                return found
    raise RuntimeError(f"There are no {count} free ports below {_FIRST_GIVEN}.")
