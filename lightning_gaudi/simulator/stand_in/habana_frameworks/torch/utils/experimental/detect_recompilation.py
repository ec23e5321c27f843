"""Finds the modules of a model that recompile."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar

import torch

from ...._missing import missing
from ...core.step_closure import mark_step
from ...hpu.autocast import is_autocast_hpu_enabled
from ...hpu.metrics import metric_localcontext
from ._recompilations import Call, Log, report
from .data_shapes import (
    check_one_process,
    const_shape_dataloader,
    data_dynamicity,
    get_shape,
    print_result,
)

__all__ = [
    "const_shape_dataloader",
    "data_dynamicity",
    "detect_recompilation_auto_model",
    "get_shape",
    "print_result",
]

_FIELD = "_dynshape_info"

Module = TypeVar("Module", bound=torch.nn.Module)


def detect_recompilation_auto_model(
    model: Module, mdlname: str = "Net", waittime: float = 1, csv_out: str | Path = "out"
) -> Module:
    """Watches a model and all modules in it for recompilations, in lazy mode.

    The forward pass of each module becomes a graph of its own, between two mark_steps, so that the
    graphs compiled in it can be counted. The model gets two methods: `analyse_dynamicity()` prints
    which modules recompiled in which step and how often, and writes both tables as
    `<csv_out>_1.csv` and `<csv_out>_2.csv`; `raw_logs()` returns a line for each forward pass.

    Args:
        model: The model, which is changed; a step is one call of it.
        mdlname: Its name; the modules in it are called `<mdlname>/<path>`.
        waittime: No effect: the simulated HPU counts without delay. A Gaudi waits that many
            seconds before and after each forward pass.
        csv_out: How the files' names begin.

    Returns:
        The model.

    Raises:
        AssertionError: The model, or a part of it, is watched already (the vendor's type of
            error). A forward pass raises it where this is one of several ranks.

    Source: Gaudi PyTorch bridge 1.19, utils.experimental.detect_recompilation_auto_model. There
    the analysis fails for a model without children; in 1.24.0 also for one with grandchildren.
    """
    log = Log()
    _watch(model, mdlname, log)
    model.raw_logs = lambda: log.lines
    model.analyse_dynamicity = functools.partial(report, log, csv_out)
    return model


def _watch(module: torch.nn.Module, name: str, log: Log) -> None:
    owner = getattr(module, _FIELD, None)
    if owner is log:
        # A module that is used in several places is watched where it came first.
        return
    if owner is not None:
        raise AssertionError(
            f"detect_recompilation_auto_model: {name} is watched already. Watch a model once."
        )
    setattr(module, _FIELD, log)
    log.add_module(name, module)
    module.forward = _watched(module.forward, name, log)
    for child, part in module.named_children():
        _watch(part, f"{name}/{child}", log)


def _watched(forward: Callable[..., Any], name: str, log: Log) -> Callable[..., Any]:
    """Returns `forward` as a graph of its own that is noted in the log."""
    inputs: set[Hashable] = set()
    outputs: set[Hashable] = set()
    is_whole = len(log.origins) == 1

    @functools.wraps(forward)
    def watched(*args: Any, **kwargs: Any) -> Any:
        check_one_process("detect_recompilation_auto_model")
        has_new_input = _is_new((args, kwargs), inputs)
        mark_step()
        with metric_localcontext("graph_compilation") as metric:
            result = forward(*args, **kwargs)
            mark_step()
        num_graphs = dict(metric.stats())["TotalNumber"]
        call = Call(name, log.step, has_new_input, _is_new(result, outputs), num_graphs)
        log.add_call(call, ends_step=is_whole)
        return result

    return watched


def _is_new(value: object, seen: set[Hashable]) -> bool:
    """Returns whether `value` differs in shapes or in other values from all before."""
    signature = (_signature(value), is_autocast_hpu_enabled())
    is_new = signature not in seen
    seen.add(signature)
    return is_new


def _signature(value: object) -> Hashable:
    """Returns shapes and strides of the tensors in `value`, and the other values themselves.

    Raises:
        TypeError: A value has no hash.
    """
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.storage_offset()
    if isinstance(value, dict):
        return _signature(tuple(value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(_signature(part) for part in value)
    hash(value)
    return value


__getattr__ = missing(__name__)
