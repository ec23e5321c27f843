"""Training in eight-bit floating point, which the simulated HPU does not do."""

from ....._missing import missing

__getattr__ = missing(__name__)
