"""Looking at what the compiler does."""

from ...._missing import missing

__getattr__ = missing(__name__)
