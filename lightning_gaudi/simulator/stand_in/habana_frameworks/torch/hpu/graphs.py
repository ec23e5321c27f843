"""Graph capture and replay, which the simulated HPU does not do.

A captured graph replays device work without its Python; running the Python again would hide what
goes wrong on a card, so every name of this module raises.
"""

from ..._missing import missing

__getattr__ = missing(__name__)
