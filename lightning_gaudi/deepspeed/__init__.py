"""DeepSpeed on the HPU: what the strategies of the Trainer and of Fabric do alike.

`library` imports DeepSpeed and connects it, `config` reads and completes its settings, `presets`
holds published ones, and `engine` makes the engine that trains or evaluates.
"""

# It imports Lightning, and that our strategies, which import the modules here: before any of them
# is half imported.
from .. import checkpoint as checkpoint_of_lightning  # noqa: F401
