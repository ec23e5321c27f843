"""Measures what lightning-gaudi adds to `import torch` and `import lightning` if it is not used.

Each timing is the CPU time of a new process, with and without lightning-gaudi in turns. Imports
vary by more than the limit. So the limit is for the time of our own code by itself, and for the
lower quartile of the differences.
"""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import _lightning_gaudi_autoload
from benchmarks.harness.interleaved import Effort, in_turns
from benchmarks.harness.rows import Row, of_rounds

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
    """An import, and how much longer it may take because of us."""

    name: str
    program: str
    """A program that prints the milliseconds of the import, with or without us."""
    alone: str
    """A program that prints the milliseconds of our own code in it."""
    limit_ms: float

    def measure(self, num_rounds: int) -> list[Row]:
        """Returns the time of our own code, and the difference of imports with and without us."""
        times = in_turns(
            ("1", "0"), num_rounds, lambda asked: _milliseconds(self.program, autoload=asked)
        )
        alone = [
            _milliseconds(self.alone, autoload="1", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
            for _ in range(num_rounds)
        ]
        more = [ours - others for ours, others in zip(times["1"], times["0"], strict=True)]
        difference = of_rounds(f"{self.name}: difference of imports", more, "ms")
        assert difference.quartiles is not None
        # Noise must not fail the benchmark, so only what is surely more counts.
        surely = difference.quartiles[0]
        without = f"{median(times['0']):,.0f} ms without us"
        return [
            of_rounds(f"{self.name}: by itself", alone, "ms", limit=self.limit_ms),
            replace(difference, detail=without),
            Row(f"{self.name}: lower quartile of it", surely, "ms", limit=self.limit_ms),
        ]


def _milliseconds(program: str, *, autoload: str, **variables: str) -> float:
    """Returns the number that a program prints, run in a new process without the simulator."""
    env = {name: value for name, value in os.environ.items() if name != "LIGHTNING_GAUDI_SIMULATE"}
    env |= {"LIGHTNING_GAUDI_AUTOLOAD": autoload, "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return float(result.stdout)


def measure(effort: Effort) -> list[Row]:
    """Measures `import torch`, and the import of each of Lightning's packages after it."""
    # pip compiles a package when it installs it, but an editable install may not be compiled.
    root = Path(_lightning_gaudi_autoload.__file__).parent
    compileall.compile_file(root / "_lightning_gaudi_autoload.py", quiet=1)
    compileall.compile_dir(root / "lightning_gaudi", quiet=1)
    cases = [Case("import torch", TORCH, ENTRY_POINT, 2.0)]
    for package in ("lightning", "pytorch_lightning"):
        program = LIGHTNING.format(package=package)
        alone = OURS_IN_LIGHTNING.format(package=package)
        cases.append(Case(f"import {package}", program, alone, 10.0))
    _milliseconds(cases[0].program, autoload="1")  # warm the file cache
    num_rounds = effort.rounds(NUM_ROUNDS)
    return [row for case in cases for row in case.measure(num_rounds)]
