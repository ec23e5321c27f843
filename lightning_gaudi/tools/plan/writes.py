"""Redirects what a program writes in a rehearsal to a folder of its own, which is removed.

Nothing has values in a rehearsal, and the files of an earlier run must stay as they are.
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
    """Makes this process write new files to a folder apart from now on.

    Files of the system, of temporary folders and of caches are written where they are, since
    libraries rename and lock their own files there.

    Args:
        folder: The folder, which need not exist yet.
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
        # A file that is opened with "r+" is often only read, and may be too large to copy.
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

    if hasattr(pathlib, "_NormalAccessor"):  # in Python 3.10, paths keep an `io.open` of their own
        replace(PATCH, pathlib._NormalAccessor, "open", staticmethod(io.open))
