"""Everything that is changed in Lightning, torch and DeepSpeed while they run, and nothing else.

`register` is the list: what is changed, why, and with which versions that was checked. `on_import`
says when a patch is applied, and `apply` how: nobody sets what is not ours in another way. The
other modules are the patches, one for each place in Lightning or torch.

Nothing of ours is imported by them before an HPU is asked for, and then it is found by its name.
"""

from .on_import import activate

__all__ = ["activate"]
