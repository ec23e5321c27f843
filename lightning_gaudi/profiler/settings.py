"""What `HPUProfiler` accepts, and what it says of the rest."""

from __future__ import annotations

import inspect
import os
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException

from .recording import torch_profiler

SORT_KEYS = (
    "count",
    "cpu_memory_usage",
    "cpu_time",
    "cpu_time_total",
    "hpu_time",
    "hpu_time_total",
    "self_cpu_memory_usage",
    "self_cpu_time_total",
    "self_hpu_time_total",
)

_REFUSED = {
    "emit_nvtx": "it is for NVIDIA's profilers, and Gaudi's trace has its ranges",
    "export_to_flame_graph": "pass with_stack=True: the trace then has the stacks",
    "use_cuda": "the HPU is recorded where it can be",
}


def check_settings(profiler_kwargs: dict[str, Any]) -> None:
    """Refuse arguments for other devices and those that torch's profiler does not know.

    Raises:
        MisconfigurationException: An argument, or the environment, cannot be honoured.
        TypeError: torch's profiler has no such argument.
    """
    for name, reason in _REFUSED.items():
        if profiler_kwargs.pop(name, None):
            raise MisconfigurationException(
                f"HPUProfiler({name}=True) is not supported: {reason}. Leave it out."
            )
    mode = os.environ.get("HABANA_PROFILE")
    if mode not in (None, "", "0", "profile_api_light"):
        raise MisconfigurationException(
            f"HABANA_PROFILE={mode} starts the vendor's own profiler, beside which HPUProfiler "
            "cannot record the HPU. Unset it."
        )
    known = set(inspect.signature(torch_profiler().profile.__init__).parameters) - {"self"}
    for name in profiler_kwargs:
        if name not in known:
            raise TypeError(
                f"HPUProfiler({name}=...) is an argument neither of its own nor of "
                f"torch.profiler.profile in torch {torch.__version__}. Leave it out."
            )


def check_sort_key(key: str) -> None:
    """Refuse an unknown key for the table of operators.

    Raises:
        MisconfigurationException: It is none of `SORT_KEYS`.
    """
    if key not in SORT_KEYS:
        raise MisconfigurationException(
            f"HPUProfiler(sort_by_key={key!r}) is unknown. Pass one of {', '.join(SORT_KEYS)}."
        )
