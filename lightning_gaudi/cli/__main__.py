"""`python -m lightning_gaudi.cli`."""

import sys

from lightning_gaudi.cli import main

if __name__ == "__main__":
    sys.exit(main())
