"""How the vendor's package is imported at the end of `import torch`, if it is.

Here `import torch` starts the simulator instead, in both modes, which imports what stands in.
"""

from __future__ import annotations

import os

from .._missing import missing
from .._release import is_lazy

is_loaded = True
"""Whether the package has been imported: the simulator has done it."""


def is_autoload_enabled() -> bool:
    """Tells if the vendor's package would load itself: `PT_HPU_AUTOLOAD`, else in eager mode."""
    asked = os.environ.get("PT_HPU_AUTOLOAD")
    return asked == "1" if asked in ("0", "1") else not is_lazy()


def __autoload() -> None:
    """The entry point of `torch.backends`; nothing is left to do."""


__getattr__ = missing(__name__)
