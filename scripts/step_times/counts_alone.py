"""A recipe's rehearsal that counts and measures no memory, which takes most of a plan's time.

    python -m scripts.step_times.counts_alone RECIPE ARGUMENT ...

`rehearse` starts it in a plan's environment.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from lightning_gaudi.tools.plan import dry_run
from lightning_gaudi.tools.plan.measurement import Counts
from lightning_gaudi.tools.plan.request import Request


def main() -> None:
    """Has the program rehearse as a plan has it, for its counts."""
    dry_run.measure = _count
    del sys.argv[0]
    runpy.run_module(f"recipes.{sys.argv[0]}", run_name="__main__")


def _count(request: Request, start: Callable[..., Any], published: object) -> NoReturn:
    counted = start(Counts, request.batch_size).found()
    Path(request.result).write_text(json.dumps({"counted": counted}) + "\n")
    raise SystemExit(0)


if __name__ == "__main__":
    main()
