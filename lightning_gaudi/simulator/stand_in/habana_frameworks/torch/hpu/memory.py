"""Reads the device's memory, in bytes."""

from __future__ import annotations

import warnings

from ..._missing import missing
from .._binding import C
from ._lifecycle import init
from ._utils import Device, checked_index


def memory_stats(device: Device = None) -> dict[str, int]:
    """Returns what the allocator counts, under the vendor's keys.

    Returns:
        Limit, InUse, MaxInUse, MaxAllocSize in bytes; NumAllocs, NumFrees, ActiveAllocs,
        TotalSystemAllocs, TotalSystemFrees, TotalActiveAllocs as counts.
    """
    init()
    checked_index(device)
    return dict(C.memory_stats())


def memory_allocated(device: Device = None) -> int:
    """Returns the bytes that tensors occupy."""
    return memory_stats(device)["InUse"]


memory_usage = memory_allocated


def max_memory_allocated(device: Device = None) -> int:
    """Returns the most bytes occupied since `reset_peak_memory_stats`."""
    return memory_stats(device)["MaxInUse"]


def memory_reserved(device: Device = None) -> int:
    """Returns the bytes of the device's memory, all of which the vendor's allocator reserves."""
    return memory_stats(device)["Limit"]


def max_memory_reserved(device: Device = None) -> int:
    """Returns the bytes of the device's memory, as `memory_reserved` does."""
    return memory_stats(device)["Limit"]


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Returns the free and the total bytes."""
    stats = memory_stats(device)
    return stats["Limit"] - stats["InUse"], stats["Limit"]


def memory_cached(device: Device = None) -> int:
    """Returns `memory_reserved`, under its deprecated name."""
    _warn_renamed("memory_cached", "memory_reserved")
    return memory_reserved(device)


def max_memory_cached(device: Device = None) -> int:
    """Returns `max_memory_reserved`, under its deprecated name."""
    _warn_renamed("max_memory_cached", "max_memory_reserved")
    return max_memory_reserved(device)


def _warn_renamed(old: str, new: str) -> None:
    warnings.warn(f"torch.hpu.{old} is torch.hpu.{new} now.", FutureWarning, stacklevel=3)


def reset_peak_memory_stats(device: Device = None) -> None:
    """Starts `max_memory_allocated` again from what is in use now."""
    init()
    checked_index(device)
    C.reset_peak_memory_stats()


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Starts the counts of allocations and frees again from zero."""
    init()
    checked_index(device)
    C.reset_accumulated_memory_stats()


def memory_summary(device: Device = None) -> str:
    """Returns `memory_stats` as a table."""
    lines = [f"HPU memory of device {checked_index(device)}", "-" * 44]
    for key, value in memory_stats(device).items():
        gib = f" ({value / 2**30:.2f} GiB)" if key in _BYTES else ""
        lines.append(f"{key + ':':<20}{value}{gib}")
    return "\n".join(lines) + "\n"


def formatted_memory_stats(device: Device = None) -> str:
    """Returns `memory_stats` as lines, with bytes in KB, MB and GB too."""
    lines = [f"    {'Memory Statistics (Device ID)':<39} :- {checked_index(device):<3}"]
    for key, value in memory_stats(device).items():
        sizes = [str(value)]
        if key in _BYTES:
            units = (("KB", 2**10), ("MB", 2**20), ("GB", 2**30))
            sizes += [f"{value / size:.2f}{unit}" for unit, size in units if value >= size]
        lines.append(f"    {key:<39} :- {' / '.join(sizes)}")
    return "\n".join(lines)


_BYTES = ("Limit", "InUse", "MaxInUse", "MaxAllocSize")


__getattr__ = missing(__name__)
