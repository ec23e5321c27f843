"""The vendor's part in `torch.profiler`."""

from ..._missing import missing
from ..._release import release
from .activity_profiler import DebugActivity

__all__ = ["DebugActivity"]
if release().number >= 122:
    from .activity_profiler import clean_json

    __all__ += ["clean_json"]
__getattr__ = missing(__name__)
