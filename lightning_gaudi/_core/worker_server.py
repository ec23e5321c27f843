"""What the fork server of `worker_start` imports before it forks: else each worker would.

It never has the vendor's package: a module that needs that is left to the workers.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys

MODULES = "_LIGHTNING_GAUDI_WORKER_MODULES"
"""The variable that holds a list of modules, and where to look for them, as JSON."""


def _import_modules(names: list[str], path: list[str]) -> None:
    sys.path[:] = path
    sys.modules["habana_frameworks"] = None  # type: ignore[assignment]
    for name in names:
        # Whatever fails here fails again in a worker, where the user is told.
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "habana_frameworks"]:
        del sys.modules[name]


if (_wanted := os.environ.pop(MODULES, None)) is not None:
    _import_modules(*json.loads(_wanted))
