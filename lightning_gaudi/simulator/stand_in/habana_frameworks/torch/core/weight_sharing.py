"""Offers the vendor's names for keeping shared parameters shared, which have nothing to do here.

In the vendor's lazy mode moving a module makes new parameters. Here torch's `Module.to` keeps them,
shared as they are.
"""

from __future__ import annotations

import torch

from ..._missing import missing


class HabanaParameterWrapper(torch.nn.Parameter):
    """The class into which the vendor turns parameters; no parameter has it here."""


def enable_weight_sharing() -> None:
    """Does nothing: parameters stay shared by themselves when a module moves."""


__getattr__ = missing(__name__)
