"""Reads a container's memory limit, and how many of its processes the limit has ended.

Source: Linux, Documentation/admin-guide/cgroup-v2.rst (`memory.max`, `memory.events`) and
cgroup-v1/memory.rst (`memory.limit_in_bytes`, `memory.oom_control`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_ROOT = "/sys/fs/cgroup"
_NO_LIMIT = 2**60
"""Version 1 of cgroups writes about 2**63, rounded to pages, if there is no limit."""

Read = Callable[[str], str | None]


class MemoryLimit(NamedTuple):
    """The limit of the group of processes that this one is in."""

    num_bytes: int
    num_killed: int
    """How many processes the system has killed because of it since the group was made."""


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except OSError:
        return None


def find_memory_limit(read: Read = _read) -> MemoryLimit | None:
    """Returns the limit; None where there is none, as outside of containers.

    Args:
        read: Returns the text of a file of the system's, None if it cannot be read.
    """
    groups = read("/proc/self/cgroup") or ""
    for name, limit, events in (
        (r"^0::(.*)$", "memory.max", "memory.events"),
        (r"^\d+:(?:\S+,)?memory(?:,\S+)?:(.*)$", "memory.limit_in_bytes", "memory.oom_control"),
    ):
        root = _ROOT if events == "memory.events" else f"{_ROOT}/memory"
        path = re.search(name, groups, re.M)
        # A container may see its own group as the root but read the host's path in /proc.
        for folder in (f"{root}{path[1].rstrip('/')}" if path else root, root):
            text = (read(f"{folder}/{limit}") or "").strip()
            if text.isdecimal() and int(text) < _NO_LIMIT:
                killed = re.search(r"^oom_kill (\d+)$", read(f"{folder}/{events}") or "", re.M)
                return MemoryLimit(int(text), int(killed[1]) if killed else 0)
    return None
