"""Runs a target by hand; see the package."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("LIGHTNING_GAUDI_SIMULATE", "8")
os.environ.setdefault("LIGHTNING_GAUDI_COMPILE", "none")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: F401

from . import target, targets


def main(name: str, index: str | None = None) -> None:
    """Runs a target on 2,000 inputs and prints what fails, or on one, and raises what that does."""
    if index is None:
        outcome = target.run(name, 2000)
        print(f"{outcome.num_inputs} inputs, {outcome.seconds:.1f} s", *outcome.failures, sep="\n")
        return
    found = targets.TARGETS[name]
    with tempfile.TemporaryDirectory() as folder:
        parser = found.prepare(Path(folder))
        given = parser.damage(target.random_of(name, int(index)))
        print(repr(given)[:5000])
        print("It raised, as it may:", repr(target.judge(found, parser, given)))


if __name__ == "__main__":
    main(*sys.argv[1:])
