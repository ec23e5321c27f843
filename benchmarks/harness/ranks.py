"""Processes that train together, of which each benchmark for several cards starts some itself."""

from __future__ import annotations

import logging
import os
import warnings
from itertools import islice
from pathlib import Path

import torch

from lightning_gaudi._core.launched import why_not_listen

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The first and the last port that the kernel gives to sockets which ask for none: ip(7)."""


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
    """Returns ports that were free a moment ago, below the ephemeral ones.

    The kernel gives those to sockets that ask for no port, as gloo's: one might be taken before its
    turn comes.
    """
    below = range(int(_EPHEMERAL.read_text().split()[0]) - 1, 1024, -1)
    found = list(islice((port for port in below if why_not_listen(port) is None), count))
    if len(found) < count:
        raise RuntimeError(f"There are no {count} free ports from 1025 to {below.start}.")
    return found
