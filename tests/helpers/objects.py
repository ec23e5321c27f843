"""An object store that processes share: `objects://` and a folder's path.

Importing it makes the addresses known to fsspec.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem


class Objects(LocalFileSystem):  # type: ignore[misc]
    """As a store: folders are there as long as something is in them, and nobody makes any."""

    protocol = "objects"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options | {"auto_mkdir": True})

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return str(super()._strip_protocol(str(path).removeprefix("objects://")))

    def rm_file(self, path: str) -> None:
        super().rm_file(path)
        for folder in Path(self._strip_protocol(path)).parents:
            if any(folder.iterdir()):
                return
            folder.rmdir()


fsspec.register_implementation("objects", Objects, clobber=True)


def address(folder: Path) -> str:
    """The address of a folder."""
    return f"objects://{folder}"
