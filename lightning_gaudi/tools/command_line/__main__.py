"""Runs the command line: `python -m lightning_gaudi.tools.command_line`."""

import sys

from lightning_gaudi.tools.command_line import main

if __name__ == "__main__":
    sys.exit(main())
