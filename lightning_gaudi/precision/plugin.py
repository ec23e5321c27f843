"""`HPUPrecisionPlugin`: the precisions that Gaudi computes in, for the Trainer."""

from __future__ import annotations

from lightning.pytorch.plugins.precision import Precision

from ..fabric.precision.plugin import HPUPrecision


class HPUPrecisionPlugin(HPUPrecision, Precision):
    """How numbers are held and computed on an HPU: `Trainer(precision=...)`.

    The forward of a step and its loss are computed as `HPUPrecision` says.
    """
