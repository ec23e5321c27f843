"""One benchmark in a process of its own: `python -m benchmarks.harness.worker NAME FILE`.

Started by `python -m benchmarks`, on simulated cards where the benchmark needs some.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import sys
import warnings
from pathlib import Path

from benchmarks.harness.interleaved import Effort


def main() -> int:
    """Measure, and write the rows down."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("file", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    module = importlib.import_module(f"benchmarks.{options.name}")
    rows = module.measure(Effort(options.quick))
    options.file.write_text(json.dumps([row.as_json() for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
