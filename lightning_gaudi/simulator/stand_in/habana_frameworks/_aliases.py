"""Modules that are named in the stand-in as Python names them, and in the vendor's otherwise."""

from __future__ import annotations

import importlib
import sys


def alias_modules(package: str, **names: str) -> None:
    """Lets `import package.Theirs` find `package.ours`.

    Args:
        package: The package's `__name__`.
        names: For each module its name in the vendor's package, and the one it has here.
    """
    for theirs, ours in names.items():
        sys.modules[f"{package}.{theirs}"] = importlib.import_module(f"{package}.{ours}")
