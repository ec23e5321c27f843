"""Imported by nobody but a checkpoint that may not: leaves a file where CANARY says."""

import os
from pathlib import Path

from lightning.pytorch import LightningModule

Path(os.environ["CANARY"], "imported").touch()


class Evil(LightningModule):
    """What such a checkpoint asks to have made."""
