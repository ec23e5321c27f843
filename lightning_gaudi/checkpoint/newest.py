"""The newest checkpoint that can be loaded."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

from .torch_dcp.layout import is_sharded_folder


def newest_valid(checkpoints: Sequence[Path]) -> Path | None:
    """The last of some checkpoints that is whole, as far as can be seen without reading it.

    Args:
        checkpoints: Files, or folders of shards, in the order in which they were saved.
    """
    return next((path for path in reversed(checkpoints) if _is_whole(path)), None)


def _is_whole(path: Path) -> bool:
    if path.is_dir():
        # DeepSpeed names its newest version in a file that it writes last.
        return is_sharded_folder(path) or (path / "latest").is_file()
    return zipfile.is_zipfile(path)
