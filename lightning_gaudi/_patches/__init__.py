"""All changes to Lightning, torch, transformers and DeepSpeed while they run.

`register` lists what is changed, why, and with which versions that was checked. `on_import` decides
when a patch is applied, and `apply` holds the only functions that change other packages. The other
modules are the patches, one for each place in Lightning or torch.

They import nothing of ours before an HPU is asked for, and then find it by name.
"""

from .on_import import activate

__all__ = ["activate"]
