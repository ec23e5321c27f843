"""The layout of a sharded checkpoint: a folder to which each rank has written its part.

The files are Lightning's: `.metadata` says which tensors there are and where, `__RANK_0.distcp` and
so on hold the parts, and `meta.pt` holds all but the states of models and optimizers. The manifest
lies beside them. Reading the parts needs torch's DCP and is in `load`, which is imported only then.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from lightning_gaudi.untrusted import path_inside, printable

from .. import restricted
from ..errors import ADVICE, DamagedCheckpointError

METADATA = ".metadata"
REST = "meta.pt"


def is_sharded_folder(path: Path) -> bool:
    """Returns whether a path is a folder of shards, complete or not."""
    return path.is_dir() and any((path / name).is_file() for name in (METADATA, REST))


def check_replaceable(target: Path) -> None:
    """Refuses to replace a folder by a checkpoint, unless it is a sharded one or empty."""
    if target.is_dir() and not is_sharded_folder(target) and any(target.iterdir()):
        raise IsADirectoryError(
            errno.EISDIR, f"{target} is a folder, and no checkpoint. Save to another path."
        )


def load_rest(folder: Path, *, weights_only: bool | None = None) -> dict[str, Any]:
    """Returns all but the states of models and optimizers from a folder of shards.

    Args:
        folder: The checkpoint.
        weights_only: See `HPUCheckpointIO.load_checkpoint`.

    Raises:
        UntrustedCheckpointError: The file holds more than tensors and plain data.
        ValueError: It is missing or truncated.
    """
    path, shown = folder / REST, printable(folder)
    if not path.is_file():
        raise DamagedCheckpointError(
            f"The checkpoint {shown} has no {REST}: it is incomplete. {ADVICE}"
        )
    try:
        path_inside(folder, REST)
    except ValueError as error:
        raise DamagedCheckpointError(f"The checkpoint {shown} is damaged: {error}") from None
    try:
        rest = restricted.load(path, weights_only=weights_only)
    except DamagedCheckpointError as error:
        raise DamagedCheckpointError(
            f"{printable(path)} is truncated or damaged: {error}"
        ) from error
    if not isinstance(rest, dict):
        raise DamagedCheckpointError(
            f"{printable(path)} is damaged: it does not hold a dict. {ADVICE}"
        )
    return rest
