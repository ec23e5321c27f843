"""Processes that train together, of which each benchmark for several cards starts some itself."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from contextlib import ExitStack

import torch


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
    """Ports that were free a moment ago."""
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.socket()) for _ in range(count)]
        for server in servers:
            server.bind(("127.0.0.1", 0))
        return [server.getsockname()[1] for server in servers]
