"""Parameters that modules share, which lazy mode of the vendor's has to keep shared by itself.

There moving a module makes new parameters; here `Module.to` of torch's keeps them, shared as they
are, so there is nothing to switch on.
"""

from __future__ import annotations

import torch

from ..._missing import missing


class HabanaParameterWrapper(torch.nn.Parameter):
    """What the vendor turns a parameter into; no parameter is one here."""


def enable_weight_sharing() -> None:
    """Keeps parameters shared when a module moves: they stay so by themselves."""


__getattr__ = missing(__name__)
