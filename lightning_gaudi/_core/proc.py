"""What the kernel says of processes of this machine. Source: proc_pid_stat(5), namespaces(7)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

ENDED = ("Z", "X")
"""The states of a process that has ended, and that nobody has waited for yet."""


class Status(NamedTuple):
    """Fields 3, 22, 52, and the sum of 14 and 15, of /proc/PID/stat."""

    state: str
    started: int
    """When, in ticks since the machine started: another process may get its number."""
    code: int
    ticks: int
    """How long it has computed."""


def status(pid: int) -> Status | None:
    """Returns what a process does; None if there is none of that number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return Status(fields[0], int(fields[19]), int(fields[49]), int(fields[11]) + int(fields[12]))


def host() -> str:
    """Returns the machine, and what counts processes on it: a container counts its own."""
    return f"{os.uname().nodename} {Path('/proc/self/ns/pid').readlink()}"


def describe(pid: int) -> str:
    """Returns a process as others of its machine find it: who counts, its number, when it began."""
    found = status(pid)
    is_there = found is not None and found.state not in ENDED
    return f"{host()} {pid} {found.started if found is not None and is_there else None}"


def has_died(description: str) -> bool:
    """Returns whether a process that `describe` has described, if one of this machine, is no more.

    Args:
        description: Of whatever text; of one that describes none, False.
    """
    who_counts, *process = description.rsplit(" ", 2)
    if who_counts != host() or len(process) != 2 or not process[0].isdecimal():
        return False
    return describe(int(process[0])) != description
