"""What a figure was measured on, with what, and who else was at work there."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGES = (
    *("torch", "lightning", "transformers", "accelerate", "deepspeed", "diffusers", "numpy"),
    "lightning-gaudi",
)
BUSY_SHARE = 0.1
"""Of the machine's cores: what others may take before figures are called those of a busy one."""


def describe() -> dict[str, Any]:
    """CPU, cores that this process may use, memory, and system."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": _cpu(),
        "cores": num_cores(),
        "memory_gib": round(pages / 2**30, 1),
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def num_cores() -> int:
    """That this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or "unknown"
    return " ".join((re.findall(r"^model name\s*: (.*)$", text, re.M) or ["unknown"])[0].split())


def versions() -> dict[str, str]:
    """Of Python, of the packages that are measured, and the commit of this repository."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found | {"commit": _commit()}


def _commit() -> str:
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        # The results of the benchmarks before this one change nothing that is measured.
        changed = _git("status", "--porcelain", "--", ".", ":!benchmarks/results")
    except (OSError, subprocess.CalledProcessError):
        return "no repository"
    return f"{head}, changed" if changed else head


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def load_average() -> float:
    """Of the last minute: how many processes wanted a core."""
    return os.getloadavg()[0]


def _busy_s(stat: str) -> float:
    """Seconds of all cores since the start of the system: all but idle and waiting for disks.

    Source: proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal; in ticks.
    """
    user, nice, system, _, _, irq, softirq, steal = map(int, stat.split("\n")[0].split()[1:9])
    ticks = user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def _read_stat() -> str | None:
    try:
        return Path("/proc/stat").read_text()
    except OSError:
        return None


def _read_own_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


_SHORTEST_WATCH_S = 1.0
"""The system counts in ticks of some 10 ms, and not at the same moment on all cores."""


class OthersWatch:
    """How many cores others use from now on: what the machine does, without this process's tree.

    The load average would count a benchmark that has just ended.

    Args:
        read_stat: Gives the text of /proc/stat.
        read_own_s: Gives the CPU seconds of this process and of its children that have ended.
        clock: Gives seconds.
    """

    def __init__(
        self,
        read_stat: Callable[[], str | None] = _read_stat,
        read_own_s: Callable[[], float] = _read_own_s,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._reads = (read_stat, read_own_s, clock)
        self._begin = self._read()

    def num_cores(self) -> float | None:
        """Cores in use by others since then, on average.

        None where the system does not say, and within the first second, when it cannot be known.
        """
        (all_then, own_then, then), (all_now, own_now, now) = self._begin, self._read()
        if all_then is None or all_now is None or now - then < _SHORTEST_WATCH_S:
            return None
        return max(0.0, (all_now - all_then - (own_now - own_then)) / (now - then))

    def _read(self) -> tuple[float | None, float, float]:
        read_stat, read_own_s, clock = self._reads
        text = read_stat()
        return (None if text is None else _busy_s(text)), read_own_s(), clock()


def is_busy(others: float | None) -> bool:
    """Tells whether so many cores in use by others make figures doubtful."""
    return others is not None and others > BUSY_SHARE * num_cores()
