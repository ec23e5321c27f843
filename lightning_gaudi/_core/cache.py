"""The folder for cached data."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder(kind: str) -> Path:
    """Returns the folder for one kind of cached data, which need not exist yet.

    Args:
        kind: its name: `corpus` for text, `tokens` for token ids.

    Returns:
        That folder in LIGHTNING_GAUDI_CACHE_DIR, which is `~/.cache/lightning_gaudi` unless set.
    """
    if configured := os.environ.get("LIGHTNING_GAUDI_CACHE_DIR"):
        return Path(configured).expanduser() / kind
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lightning_gaudi" / kind
