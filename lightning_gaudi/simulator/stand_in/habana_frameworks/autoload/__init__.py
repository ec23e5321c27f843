"""The vendor's entry point, by which `import torch` imports its package.

Here `import torch` starts the simulator instead, in both modes, which imports what stands in.
"""

from __future__ import annotations

import os

from .._missing import missing
from .._release import is_lazy

is_loaded = True
"""Whether the package has been imported, which the simulator has always done."""


def is_autoload_enabled() -> bool:
    """Returns whether the vendor's package would load itself.

    `PT_HPU_AUTOLOAD` says so; without it, eager mode does.
    """
    asked = os.environ.get("PT_HPU_AUTOLOAD")
    return asked == "1" if asked in ("0", "1") else not is_lazy()


def __autoload() -> None:
    """Does nothing, because the simulator has imported the package already."""


__getattr__ = missing(__name__)
