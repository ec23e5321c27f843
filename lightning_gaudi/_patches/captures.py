"""Whether an HPU graph is being captured, for libraries that ask that of other devices alone.

While a graph is captured nothing may be read on the host. The vendor's own question,
`is_current_stream_capturing`, is about an object that `hpu.graph` marks: within a module of
`wrap_in_hpu_graph` it says no (`hpu/graphs.py`, 1.24.0).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .apply import wrap

_captured: weakref.ref[Any] | None = None
"""The HPUGraph that is being captured; one whose capture failed is gone with it."""


def patch_graphs(hpu: ModuleType, family: Any) -> None:
    """Notes when a graph of the vendor's begins to be captured, and when that ends.

    Args:
        hpu: The vendor's `habana_frameworks.torch.hpu`, just imported.
        family: Not used.
    """
    graph = getattr(hpu, "HPUGraph", None)
    if graph is None:  # up to release 1.20 it is there in lazy mode alone
        return

    @wrap("graph-captures", graph, "capture_begin")
    def capture_begin(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
        global _captured
        original(self, *args, **kwargs)
        _captured = weakref.ref(self)

    def ends(method: str) -> None:
        @wrap("graph-captures", graph, method)
        def end(original: Callable[..., Any], self: Any) -> None:
            global _captured
            original(self)
            if _captured is not None and _captured() is self:
                _captured = None

    ends("capture_end")
    ends("reset")


def patch_transformers(modeling: ModuleType, family: Any) -> None:
    """Lets transformers take a capture on the HPU for what it takes one on a GPU for.

    Args:
        modeling: `transformers.modeling_utils`, just imported.
        family: Not used.
    """
    from transformers.utils import import_utils

    if not hasattr(import_utils, "is_cuda_stream_capturing"):  # older: it asks no device
        return

    @wrap("transformers-captures", import_utils, "is_cuda_stream_capturing")
    def is_cuda_stream_capturing(original: Callable[[], bool]) -> bool:
        return is_capturing() or original()


def is_capturing() -> bool:
    """Returns whether an HPU graph is being captured, by whatever of the vendor's captures it."""
    return _captured is not None and _captured() is not None
