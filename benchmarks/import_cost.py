"""What `import torch` and `import lightning` cost where lightning-gaudi is installed and not used.

Run with `python benchmarks/import_cost.py`: no simulator. Each timing is a process of its own, and
CPU time, with and without us in turns. Importing varies by more than what is asked for, so the
differences are printed with their quartiles, and beside them what our own code takes by itself.
"""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import _lightning_gaudi_autoload

NUM_ROUNDS = 21

# torch calls our entry point as the last thing it does.
ENTRY_POINT = """
import time, torch
from importlib.metadata import entry_points
[found] = entry_points(group="torch.backends", name="lightning_gaudi")
start = time.process_time()
found.load()()
print((time.process_time() - start) * 1e3)
"""
TORCH = """
import time
start = time.process_time()
import torch
print((time.process_time() - start) * 1e3)
"""
# What torch takes is left out: it is the larger part, and so is its noise.
LIGHTNING = """
import time, torch
start = time.process_time()
import {package}
print((time.process_time() - start) * 1e3)
"""
OURS_IN_LIGHTNING = """
import time, torch
total = 0.0
from lightning_gaudi._patches import on_import

def timed(function):
    def call(*args):
        global total
        start = time.process_time()
        try:
            return function(*args)
        finally:
            total += time.process_time() - start
    return call

on_import._after_import = timed(on_import._after_import)
import {package}
print(total * 1e3)
"""


@dataclass(frozen=True)
class Case:
    """Something that is imported, and what it may cost more because of us."""

    name: str
    program: str
    """Prints what it takes, with us or without."""
    alone: str
    """Prints what our code takes by itself."""
    limit_ms: float

    def measure(self) -> bool:
        """Print a row; return whether the cost is within its limit."""
        differences, without = [], []
        _milliseconds(self.program, autoload="1")  # warm the file cache
        for index in range(NUM_ROUNDS):
            found = {}
            for is_ours in (True, False) if index % 2 else (False, True):
                found[is_ours] = _milliseconds(self.program, autoload="1" if is_ours else "0")
            differences.append(found[True] - found[False])
            without.append(found[False])
        alone = median(
            _milliseconds(self.alone, autoload="1", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
            for _ in range(NUM_ROUNDS)
        )
        low, high = (sorted(differences)[len(differences) * part // 4] for part in (1, 3))
        cost = median(differences)
        print(
            f"{self.name:18} {median(without):9.1f} {cost:9.2f} {low:9.2f} {high:9.2f}"
            f" {alone:9.2f} {self.limit_ms:9.1f}"
        )
        # More noise than cost must not fail it; what is surely more does.
        return alone <= self.limit_ms and low <= self.limit_ms


def _milliseconds(program: str, *, autoload: str, **variables: str) -> float:
    """What `program` prints, run in a new process that is not asked for the simulator."""
    env = {name: value for name, value in os.environ.items() if name != "LIGHTNING_GAUDI_SIMULATE"}
    env |= {"LIGHTNING_GAUDI_AUTOLOAD": autoload, "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return float(result.stdout)


def main() -> int:
    """Measure, print medians, and return 1 if something takes longer than its limit."""
    # As pip does when it installs a package; an editable install may lack it.
    root = Path(_lightning_gaudi_autoload.__file__).parent
    compileall.compile_file(root / "_lightning_gaudi_autoload.py", quiet=1)
    compileall.compile_dir(root / "lightning_gaudi", quiet=1)
    cases = [Case("import torch", TORCH, ENTRY_POINT, 2.0)]
    for package in ("lightning", "pytorch_lightning"):
        program = LIGHTNING.format(package=package)
        alone = OURS_IN_LIGHTNING.format(package=package)
        cases.append(Case(f"import {package}", program, alone, 10.0))
    print("CPU milliseconds     without   with us, more: median, quartiles  by itself     limit")
    results = [case.measure() for case in cases]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
