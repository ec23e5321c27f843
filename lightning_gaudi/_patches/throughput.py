"""What Lightning's `ThroughputMonitor` must know of an HPU: the dtype it computes in, and its peak.

Lightning looks both up by the kind of device and of plugin, and has no entry for ours.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lightning_gaudi._core.mirror import Family

from .apply import wrap

if TYPE_CHECKING:
    import torch


def patch_throughput(module: ModuleType, family: Family) -> None:
    """Adds ours to a module of Lightning's that asks.

    Args:
        module: `fabric.utilities.throughput`, or the Trainer's `callbacks.throughput_monitor`.
        family: Lightning's and ours.
    """
    role = "fabric" if module.__name__.startswith(family.fabric) else "trainer"
    name = f"{role}-throughput"

    @wrap(name, module, "get_available_flops")
    def get_available_flops(
        original: Callable[..., int | None], device: torch.device, dtype: torch.dtype | str
    ) -> int | None:
        if device.type == "hpu":
            from lightning_utilities.core.rank_zero import rank_zero_warn

            from lightning_gaudi._core.peaks import available_flops, why_no_peak

            why = why_no_peak(dtype)
            if why is not None:
                rank_zero_warn(why)  # as Lightning does for a GPU that it does not know
            return available_flops(dtype)
        return original(device, dtype)

    @wrap(name, module, "_plugin_to_compute_dtype")
    def plugin_to_compute_dtype(original: Callable[[Any], torch.dtype], plugin: Any) -> torch.dtype:
        ours = family.loaded("fabric.precision.plugin", "HPUWholePrecision")
        if ours is not None and isinstance(plugin, ours):
            import torch

            kinds = {"bf16": torch.bfloat16, "16": torch.float16, "32": torch.float32}
            return kinds[plugin.precision.partition("-")[0]]
        return original(plugin)
