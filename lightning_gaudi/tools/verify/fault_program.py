"""Runs a program that computes on a card, prints "working", and goes wrong.

python -m lightning_gaudi.tools.verify.fault_program FAULT

It acquires its card when its standard input ends. So several can import at the same time.
"""

from __future__ import annotations

import signal
import sys
import time
from typing import NoReturn

import torch

from lightning_gaudi._core import vendor


class ProgramError(RuntimeError):
    """The error that the program raises on purpose."""


def main() -> None:
    """Runs the program to its end."""
    [fault] = sys.argv[1:]
    sys.stdin.read()
    vendor.package()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        _compute(fault)
    except KeyboardInterrupt:
        print("caught", flush=True)
        sys.exit(130)


def _compute(fault: str) -> NoReturn:
    x = torch.ones(64, 64).to("hpu")
    for step in range(10**9):
        x = (x @ x).tanh()
        vendor.end_graph()
        if step == 2:
            vendor.synchronize()
            print("working", flush=True)
            if fault == "raise":
                raise ProgramError("this program raises on purpose")
        time.sleep(0.01)
    raise ProgramError("nobody has ended this program")


if __name__ == "__main__":
    main()
