"""Compiles models or parts of them, for the Trainer and for Fabric, without knowing either.

`settings` holds the switch. `regions` finds a model's repeated blocks and the parts beside them.
`method` compiles one module in place, and `graph_breaks` reports what could not be compiled.
`model` compiles a whole model or its regions. `compiler` does so for a strategy, lets optimizers
step all weights at once, and gives advice to those who train uncompiled.
"""

from .settings import Compilation

__all__ = ["Compilation"]
