"""A program that runs another one and prints the most that a card had in use, for each rank.

python measured.py RECIPE COMMAND [ARGUMENT ...], or python measured.py SCRIPT.py [ARGUMENT ...]
"""

from __future__ import annotations

import os
import runpy
import sys

import torch

from lightning_gaudi.tools.command_line.run import run


def main(program: str, arguments: list[str]) -> None:
    """Run it in this process."""
    if program.endswith(".py"):
        sys.argv[:] = [program, *arguments]
        runpy.run_path(program, run_name="__main__")
    else:
        run(program, arguments)  # with these arguments the ranks that Lightning starts come here
    peak = torch.hpu.memory_stats()["MaxInUse"]  # type: ignore[attr-defined]
    print(f"PEAK of rank {os.environ.get('LOCAL_RANK', 0)}: {peak}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
