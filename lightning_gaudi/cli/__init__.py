"""The command line: `lightning-gaudi`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lightning_gaudi._version import __version__
from lightning_gaudi.cli import consolidate, simulate

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The arguments after the program's name; None for those of this process.

    Returns:
        The exit status.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    # argparse would eat the command's own options: what follows `--` is the command's alone.
    split = words.index("--") if "--" in words else len(words)
    arguments, command = words[:split], words[split + 1 :]
    parser = argparse.ArgumentParser(
        prog="lightning-gaudi", description="Train on Intel Gaudi with PyTorch Lightning."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    simulate.add_parser(subparsers)
    consolidate.add_parser(subparsers)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        options.error(f"unrecognized arguments: {' '.join(unknown)}; a command is written after --")
    status: int = options.run(options, command)
    return status
