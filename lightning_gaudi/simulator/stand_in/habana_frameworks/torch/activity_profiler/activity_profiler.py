"""The vendor's part in `torch.profiler`, which records what the driver does.

A CPU has no driver to record: `torch.profiler` stays torch's own.
"""

from __future__ import annotations

import enum
from pathlib import Path

from ..._missing import missing


class DebugActivity(enum.Enum):
    """What the vendor's `torch.profiler.profile(debug_activities=...)` can record besides."""

    SYNAPSE_FUNCTION_CALLS = 1
    BRIDGE_FUNCTION_CALLS = 2


def clean_json(path: str) -> None:
    """Removes control characters from a trace, into which torch writes them with stacks."""
    file = Path(path)
    kept = bytes(byte for byte in file.read_bytes() if byte >= 0x20 and byte != 0x7F)
    file.write_text(kept.decode("utf-8", errors="replace"), encoding="utf-8")


__getattr__ = missing(__name__)
