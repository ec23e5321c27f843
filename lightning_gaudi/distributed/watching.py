"""Having the ranks of a process group watched; see `reliability.watchdog`."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from datetime import timedelta

import torch.distributed as dist

from lightning_gaudi._core import collectives, processes
from lightning_gaudi._core.rank_monitor import say
from lightning_gaudi.reliability import links, stacks, watchdog
from lightning_gaudi.reliability.hang_detection import Limits
from lightning_gaudi.reliability.heartbeat_store import Board
from lightning_gaudi.reliability.settings import ReliabilitySettings


def watch_ranks(settings: ReliabilitySettings, timeout: timedelta | None) -> None:
    """Begins to watch the ranks of the process group, once for each; all ranks do this.

    Args:
        settings: What the user wants.
        timeout: The process group's; None for torch's.
    """
    group = dist.group.WORLD
    if not settings.watchdog or dist.get_world_size() == 1 or watchdog.knows(group):
        return
    board = Board.new(_limits(settings, timeout))
    told = collectives.gather_objects((stacks.prepare(board.path), secrets.token_hex()))
    others = [process for process, _ in told]
    meeting = watchdog.Meeting(dist.get_rank(), others, told[0][1])
    if len(set(meeting.hosts)) > 1:
        _listen(meeting)
    watchdog.start(group, board, meeting)
    processes.before_leaving(watchdog.stop)


def _listen(meeting: watchdog.Meeting) -> None:
    """Has rank 0's host listen for the others, and tells them where."""
    address = os.environ.get("MASTER_ADDR") or socket.gethostname()
    port = 0
    if meeting.rank == 0:
        with contextlib.suppress(OSError):
            meeting.listener = links.listen(address, is_one_machine=meeting.is_one_machine)
            port = meeting.listener.getsockname()[1]
    meeting.address = collectives.broadcast_object((address, port))
    if port == 0 and meeting.rank == 0:
        say(
            f"MASTER_ADDR={address} is no address at which rank 0 can listen: the watchdog sees "
            "the ranks of each host alone"
        )


def adapt(settings: ReliabilitySettings, timeout: timedelta | None) -> None:
    """Has the watchdog, if there is one, do what a callback asks for; all ranks do this."""
    watchdog.change(_limits(settings, timeout) if settings.watchdog else None)


def _limits(settings: ReliabilitySettings, timeout: timedelta | None) -> Limits:
    timeout = timeout or dist.distributed_c10d.default_pg_timeout
    return watchdog.limits(timeout, settings.watchdog_timeout_s)
