"""Checks the arguments of `HPUProfiler`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException

from .recording import activity_name, torch_profiler

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

_STACK_KEYS = ("self_cpu_time_total", "self_hpu_time_total")
_ACTIVITIES = {"CPU", "HPU"}
_REFUSED = {
    "emit_nvtx": "it is for NVIDIA's profilers, and Gaudi's trace has its ranges",
    "use_cuda": "the HPU is recorded where it can be",
}


@dataclass(frozen=True)
class TraceSettings:
    """How torch's profiler records, and what is done with the traces."""

    activities: tuple[Any, ...] | None
    """What to record; by default the host, and the HPU where that is possible."""
    on_ready: Callable[[Any], None] | None
    """Takes a complete trace in the place of the files."""
    exports_trace: bool
    """Whether a trace is written as a file."""
    stacks_by: str | None
    """The key that weighs the stacks of a flame graph; None writes none."""
    arguments: dict[str, Any]
    """Further arguments of `torch.profiler.profile`."""


def trace_settings(
    arguments: dict[str, Any], *, by_shape: bool, exports_trace: bool
) -> TraceSettings:
    """Checks the arguments of `HPUProfiler` for torch's profiler.

    Args:
        arguments: By name; those of Lightning's `PyTorchProfiler` included.
        by_shape: Whether operators of different input shapes are told apart.
        exports_trace: Whether traces are written, if the user does not take them.

    Raises:
        MisconfigurationException: An argument, or the environment, cannot be honoured.
        TypeError: torch's profiler has no such argument.
    """
    arguments = dict(arguments)
    _refuse_other_devices(arguments)
    if by_shape and not arguments.setdefault("record_shapes", True):
        raise MisconfigurationException(
            "HPUProfiler(group_by_input_shapes=True) needs the shapes, but record_shapes=False "
            "leaves them out. Pass one of the two."
        )
    # As in Lightning, passing on_trace_ready replaces the file, even if it is None.
    exports_trace = exports_trace and "on_trace_ready" not in arguments
    on_ready = arguments.pop("on_trace_ready", None)
    stacks_by = _stacks(arguments)
    activities = _check_activities(arguments.pop("activities", None))
    _refuse_unknown(arguments)
    return TraceSettings(activities, on_ready, exports_trace, stacks_by, arguments)


def check_sort_key(key: str) -> None:
    """Refuses an unknown key for the table of operators.

    Raises:
        MisconfigurationException: It is none of `SORT_KEYS`.
    """
    if key not in SORT_KEYS:
        raise MisconfigurationException(
            f"HPUProfiler(sort_by_key={key!r}) is unknown. Pass one of {', '.join(SORT_KEYS)}."
        )


def _refuse_other_devices(arguments: dict[str, Any]) -> None:
    for name, reason in _REFUSED.items():
        if arguments.pop(name, None):
            raise MisconfigurationException(
                f"HPUProfiler({name}=True) is not supported: {reason}. Leave it out."
            )
    mode = os.environ.get("HABANA_PROFILE")
    if mode not in (None, "", "0", "profile_api_light"):
        raise MisconfigurationException(
            f"HABANA_PROFILE={mode} starts the vendor's own profiler, beside which HPUProfiler "
            "cannot record the HPU. Unset it."
        )


def _check_activities(asked: Iterable[Any] | None) -> tuple[Any, ...] | None:
    activities = tuple(asked or ())
    for name in map(activity_name, activities):
        if name not in _ACTIVITIES:
            raise MisconfigurationException(
                f"HPUProfiler(activities=...) names {name}, but a run on an HPU has CPU and HPU "
                "only. Name those of them that you want, or leave it out for both."
            )
    return activities or None


def _stacks(arguments: dict[str, Any]) -> str | None:
    """Returns the key that weighs stacks, if any, and makes torch's profiler keep stacks."""
    key = arguments.pop("metric", _STACK_KEYS[0])
    if not arguments.pop("export_to_flame_graph", False):
        return None
    if key not in _STACK_KEYS:
        raise MisconfigurationException(
            f"HPUProfiler(metric={key!r}) is unknown. Pass one of {', '.join(_STACK_KEYS)}."
        )
    if not arguments.setdefault("with_stack", True):
        raise MisconfigurationException(
            "HPUProfiler(export_to_flame_graph=True) needs the stacks, but with_stack=False "
            "leaves them out. Pass one of the two."
        )
    if arguments.get("experimental_config") is None:
        # Without `verbose` torch's events have no stacks, though the trace has some
        # (pytorch/pytorch#100253).
        verbose = torch._C._profiler._ExperimentalConfig(verbose=True)
        arguments["experimental_config"] = verbose
    return str(key)


def _refuse_unknown(arguments: dict[str, Any]) -> None:
    known = set(inspect.signature(torch_profiler().profile.__init__).parameters) - {"self"}
    for name in arguments:
        if name not in known:
            raise TypeError(
                f"HPUProfiler({name}=...) is an argument neither of its own nor of "
                f"torch.profiler.profile in torch {torch.__version__}. Leave it out."
            )
