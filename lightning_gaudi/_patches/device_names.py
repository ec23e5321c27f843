"""Mends names that torch and the vendor's package have for an HPU but that raise when called.

Libraries take the presence of a name for a feature, such as `torch.accelerator`'s memory functions
and `wrap_in_hpu_graph`. They also ask only other devices whether a graph is being captured, during
which nothing may be read on the host. The vendor's own `is_current_stream_capturing` knows only
captures by `hpu.graph`, and is False within a module of `wrap_in_hpu_graph` (`hpu/graphs.py`,
1.24.0).
"""

from __future__ import annotations

import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable
from types import ModuleType
from typing import Any

from lightning_gaudi._core import vendor

from .apply import replace, wrap


def patch_accelerator_memory(module: ModuleType, family: Any) -> None:
    """Makes `torch.accelerator` report an HPU's memory from the vendor's allocator.

    Args:
        module: The vendor's core, just imported.
        family: Not used.
    """
    import torch

    memory: Any = getattr(torch.accelerator, "memory", None)
    if memory is None:  # before torch 2.9
        return
    for function in _memory_functions():
        if hasattr(memory, function.__name__):
            replace("accelerator-memory", memory, function.__name__, function)
            replace("accelerator-memory", torch.accelerator, function.__name__, function)


def patch_graph_wrapper(hpu: ModuleType, family: Any) -> None:
    """Makes `wrap_in_hpu_graph` return a module unchanged if there are no HPU graphs.

    Args:
        hpu: The vendor's `habana_frameworks.torch.hpu`, just imported.
        family: Not used.
    """
    if not hasattr(hpu, "wrap_in_hpu_graph"):
        return

    @wrap("graph-wrapper", hpu, "wrap_in_hpu_graph")
    def wrap_in_hpu_graph(original: Callable[..., Any], module: Any, *args: Any, **kw: Any) -> Any:
        if has_graphs():
            return original(module, *args, **kw)
        warnings.warn(
            "wrap_in_hpu_graph: HPU graphs are of lazy mode (PT_HPU_LAZY_MODE=1). In eager mode "
            f"{type(module).__name__} runs as it is; torch.compile takes their place.",
            stacklevel=3,
        )
        return module


def has_graphs() -> bool:
    """Returns whether the vendor's bridge captures graphs, as in lazy mode."""
    return vendor.is_lazy()


def _memory_functions() -> list[Callable[..., Any]]:
    def empty_cache() -> None:
        """Does nothing, since the vendor's allocator has no cache to give back."""

    def empty_host_cache() -> None:
        """Does nothing, as `empty_cache`."""

    def memory_stats(device_index: Any = None, /) -> OrderedDict[str, Any]:
        """Returns bytes under torch's names, as far as the vendor counts them."""
        found = vendor.memory_stats()
        values = {
            "active_bytes.all.current": found["InUse"],
            "active_bytes.all.peak": found["MaxInUse"],
            "allocated_bytes.all.current": found["InUse"],
            "allocated_bytes.all.peak": found["MaxInUse"],
            "reserved_bytes.all.current": found["Limit"],
            "reserved_bytes.all.peak": found["Limit"],
        }
        return OrderedDict(sorted(values.items()))

    def get_memory_info(device_index: Any = None, /) -> tuple[int, int]:
        """Returns free and total bytes."""
        found = vendor.memory_stats()
        return found["Limit"] - found["InUse"], found["Limit"]

    def reset_peak_memory_stats(device_index: Any = None, /) -> None:
        """Resets the peak."""
        vendor.reset_peak_memory_stats()

    def reset_accumulated_memory_stats(device_index: Any = None, /) -> None:
        """Does nothing, since none of the figures above is accumulated."""

    return [
        empty_cache,
        empty_host_cache,
        memory_stats,
        get_memory_info,
        reset_peak_memory_stats,
        reset_accumulated_memory_stats,
    ]


_captured: weakref.ref[Any] | None = None
"""The HPUGraph that is being captured; weak, so that one whose capture failed does not count."""


def patch_graphs(hpu: ModuleType, family: Any) -> None:
    """Notes when the capture of an HPU graph begins and ends.

    Args:
        hpu: The vendor's `habana_frameworks.torch.hpu`, just imported.
        family: Not used.
    """
    graph = getattr(hpu, "HPUGraph", None)
    # Up to release 1.20 the class exists in lazy mode only.
    if graph is None:
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
    """Makes transformers treat a capture on the HPU like one on a GPU.

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
    """Returns whether an HPU graph is being captured, by any of the vendor's functions."""
    return _captured is not None and _captured() is not None
