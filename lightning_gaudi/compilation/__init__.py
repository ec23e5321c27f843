"""What of a model is compiled, for the Trainer and for Fabric: knows torch, and neither of them.

`settings` is the switch and who may set it, `regions` finds what repeats in a model and what stands
beside it, `method` compiles one module in place, `graph_breaks` says what fell out of a graph,
`model` does it all for a strategy. `foreach` is the optimizer's part, `launches` tells those who
train without.
"""

from .settings import Compilation

__all__ = ["Compilation"]
