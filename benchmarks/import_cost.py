"""What `import torch` costs where lightning-gaudi is installed and nobody uses it.

Run with `python benchmarks/import_cost.py`: no simulator. Each timing is a process of its own.
"""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import _lightning_gaudi_autoload

NUM_ROUNDS = 15
LIMIT_MS = 2.0

# `import torch` takes a second and varies by many milliseconds, so the entry point, which torch
# calls as the last thing it does, is also timed by itself.
ENTRY_POINT = """
import time
import torch
from importlib.metadata import entry_points
[found] = entry_points(group="torch.backends", name="lightning_gaudi")
start = time.perf_counter()
found.load()()
print((time.perf_counter() - start) * 1e3)
"""
WHOLE_IMPORT = """
import time
start = time.perf_counter()
import torch
print((time.perf_counter() - start) * 1e3)
"""


def milliseconds(program: str, **changes: str) -> float:
    """What `program` prints, run in a new process that is not asked for the simulator."""
    env = {name: value for name, value in os.environ.items() if name != "LIGHTNING_GAUDI_SIMULATE"}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=env | changes, capture_output=True, text=True, check=True)
    return float(result.stdout)


def main() -> int:
    """Measure, print medians, and return 1 if the entry point takes longer than its limit."""
    # As pip does when it installs a package; an editable install may lack it.
    root = Path(_lightning_gaudi_autoload.__file__).parent
    compileall.compile_file(root / "_lightning_gaudi_autoload.py", quiet=1)
    compileall.compile_dir(root / "lightning_gaudi", maxlevels=0, quiet=1)
    milliseconds(WHOLE_IMPORT)  # warm the file cache
    alone, differences, without = [], [], []
    for index in range(NUM_ROUNDS):
        alone.append(milliseconds(ENTRY_POINT, TORCH_DEVICE_BACKEND_AUTOLOAD="0"))
        whole = {}
        for autoload in ("0", "1") if index % 2 else ("1", "0"):
            whole[autoload] = milliseconds(WHOLE_IMPORT, LIGHTNING_GAUDI_AUTOLOAD=autoload)
        differences.append(whole["1"] - whole["0"])
        without.append(whole["0"])
    cost = median(alone)
    print(f"the entry point by itself                  {cost:8.2f} ms (limit {LIMIT_MS})")
    print(f"import torch, with it less without it      {median(differences):8.2f} ms")
    print(f"import torch, without it                   {median(without):8.2f} ms")
    print(f"    quartiles of the differences           {_quartiles(differences)}")
    return 0 if cost <= LIMIT_MS else 1


def _quartiles(values: list[float]) -> str:
    ordered = sorted(values)
    return f"{ordered[len(values) // 4]:8.2f} to {ordered[3 * len(values) // 4]:.2f} ms"


if __name__ == "__main__":
    sys.exit(main())
