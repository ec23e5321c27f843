"""What of a model is compiled, for the Trainer and for Fabric: knows torch, and neither of them.

`settings` is the switch and who may set it, `regions` finds what repeats in a model and what stands
beside it, `method` compiles one module in place, `graph_breaks` says what fell out of a graph,
`model` compiles all of one or its regions, and `compiler` does it for a strategy, steps optimizers
at once, and tells those who train without.
"""

from .settings import Compilation

__all__ = ["Compilation"]
