"""What a program writes in a rehearsal: it goes to a folder of its own, which is removed.

Nothing has values there, and what an earlier run has left must stay as it is.
"""

from __future__ import annotations

import builtins
import io
import os
import pathlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning_gaudi._patches.apply import replace, wrap

PATCH = "rehearsal-writing"


def write_apart(folder: Path) -> None:
    """Lets this process write new files in a folder apart, from now on.

    Files of the system, of temporary folders and of caches are written where they are: libraries
    have their own there, and rename and lock them.

    Args:
        folder: It need not be there.
    """
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    left_alone = [*map(Path, (tempfile.gettempdir(), caches, "/dev", "/proc", "/sys"))]
    project = Path.cwd()

    def place_of(file: Any, mode: Any) -> Any:
        if not isinstance(file, (str, os.PathLike)) or not isinstance(mode, str):
            return file
        path = project / os.fsdecode(file)
        above = [each for each in (project, *left_alone) if path.is_relative_to(each)]
        if max(above, key=lambda each: len(each.parts), default=project) in left_alone:
            return file
        apart = folder / path.relative_to(path.anchor)
        # What is opened to be changed in place ("r+") is as often only read, and may be large.
        if set(mode).isdisjoint("wax"):
            return apart if apart.exists() else file
        if path.parent.is_dir():
            apart.parent.mkdir(parents=True, exist_ok=True)
        return apart

    for owner in (builtins, io):

        @wrap(PATCH, owner, "open")
        def open_apart(
            original: Callable[..., Any], file: Any, mode: Any = "r", *args: Any, **more: Any
        ) -> Any:
            return original(place_of(file, mode), mode, *args, **more)

    if hasattr(pathlib, "_NormalAccessor"):  # Python 3.10's paths have an `io.open` of their own
        replace(PATCH, pathlib._NormalAccessor, "open", staticmethod(io.open))
