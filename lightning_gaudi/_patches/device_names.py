"""Names that torch and the vendor's package have for an HPU, and that raise where they are called.

Libraries ask whether a name is there and take it for a feature: `torch.accelerator`'s functions of
memory, and `wrap_in_hpu_graph`.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from types import ModuleType
from typing import Any

from lightning_gaudi._core import vendor

from .apply import replace, wrap


def patch_accelerator_memory(module: ModuleType, family: Any) -> None:
    """Lets `torch.accelerator` tell an HPU's memory, by what the vendor's allocator counts.

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
    """Makes `wrap_in_hpu_graph` leave a module as it is where there are no HPU graphs.

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
    """Returns whether the vendor's bridge captures graphs, which it does in lazy mode."""
    return vendor.is_lazy()


def _memory_functions() -> list[Callable[..., Any]]:
    def empty_cache() -> None:
        """Nothing: the vendor's allocator has no cache that it could give back."""

    def empty_host_cache() -> None:
        """Nothing, as `empty_cache`."""

    def memory_stats(device_index: Any = None, /) -> OrderedDict[str, Any]:
        """Returns bytes under torch's names; none of those that the vendor does not count."""
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
        """Counts the peak anew."""
        vendor.reset_peak_memory_stats()

    def reset_accumulated_memory_stats(device_index: Any = None, /) -> None:
        """Nothing: of what the vendor counts, nothing above is accumulated."""

    return [
        empty_cache,
        empty_host_cache,
        memory_stats,
        get_memory_info,
        reset_peak_memory_stats,
        reset_accumulated_memory_stats,
    ]
