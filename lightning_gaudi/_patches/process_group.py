"""`init_process_group` beside the vendor's package, for processes that use no HPU."""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any

from .apply import replace


def accept_no_device(module: ModuleType, family: Any) -> None:
    """Have it take `device_id=None` again, which says nothing; a device is refused as before.

    Args:
        module: The vendor's, which has put a wrapper without that argument in its place.
        family: Not used.

    Source: Intel Gaudi PyTorch bridge, `core/torch_overwrites.py` of 1.19, which has no such
    argument, and of 2025 and 1.24.0, which have.
    """
    import torch.distributed as dist

    original = getattr(dist, "init_process_group", None)
    if original is None:
        return
    own = inspect.signature(original, follow_wrapped=False).parameters
    if "device_id" in own:
        return

    @functools.wraps(original)
    def init_process_group(*args: Any, device_id: Any = None, **kwargs: Any) -> Any:
        device = {} if device_id is None else {"device_id": device_id}
        return original(*args, **kwargs, **device)

    replace("process-group", dist, "init_process_group", init_process_group)
