"""DeepSpeed on the HPU: what the strategies of the Trainer and of Fabric do alike.

`library` imports DeepSpeed and connects it. `config` reads and completes its settings, `keys` looks
for unknown ones, `presets` holds published ones, and `optimizers` makes what they name. `engine`
makes the engine that trains or evaluates, `placing` moves a model to the card for it, `reuse` takes
a model from one to the next, and `manual` and `accumulation` tell it when to step. `offload` says
what can be on the CPU instead, and `build` and `compiler` make what that needs.

`saving` and `checkpoint` save and load, `objects` for Fabric. `tags` and `shards` know the files,
`weights` loads whole ones into shards, `consolidate` makes them whole, and `universal` divides them
among another number of ranks.
"""

# It imports Lightning, and that our strategies, which import the modules here: before any of them
# is half imported.
from .. import checkpoint as checkpoint_of_lightning  # noqa: F401
