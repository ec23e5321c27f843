"""Measures the host's time to launch something on a card, and the time to compile it first."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from lightning_gaudi._core import vendor
from lightning_gaudi.tools.verify.parts.context import Context, Tell

_NUM_NODES = (10, 100, 1000)


def measure(context: Context, tell: Tell) -> None:
    """Reports the seconds of a launch: eager and compiled, or of a graph in lazy mode."""
    x = torch.zeros(128, device=context.device)

    def add() -> object:
        return x.add_(1.0)

    if vendor.is_lazy():
        tell({"row": "launches", "mode": "lazy", "seconds": context.seconds(add)})
        return
    tell({"row": "launches", "mode": "eager", "seconds": context.seconds(add)})
    compiled = _compiled(lambda x: x * 2.0 + 1.0)
    seconds = context.seconds(lambda: compiled(x))
    tell({"row": "launches", "mode": "compiled", "seconds": seconds})


def measure_compilation(context: Context, tell: Tell) -> None:
    """Reports the seconds to compile graphs, by number of nodes: the first run less a second run.

    With `torch.compile` this includes the time in which torch reads the function, as in a program.
    """
    x = torch.zeros(128, device=context.device)
    mode = "lazy" if vendor.is_lazy() else "compiled"
    for num_nodes in _NUM_NODES[:2] if context.is_quick else _NUM_NODES:
        chain = _chain(num_nodes)
        run = chain if vendor.is_lazy() else _compiled(chain)
        first, second = _timed(run, x), _timed(run, x)
        tell(
            {
                "row": "compile",
                "mode": mode,
                "num_nodes": num_nodes,
                "seconds": max(0.0, first - second),
            }
        )


def _compiled(function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend=vendor.COMPILE_BACKEND, dynamic=False)


def _chain(num_nodes: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns a function of so many operators in a row, of four kinds in turn."""

    def run(x: torch.Tensor) -> torch.Tensor:
        for index in range(num_nodes // 4):
            x = torch.tanh(x * 1.5 + float(index)).neg()
        return x

    return run


def _timed(run: Callable[[torch.Tensor], object], x: torch.Tensor) -> float:
    vendor.synchronize()
    started = time.perf_counter()
    run(x)
    vendor.end_graph()
    vendor.synchronize()
    return time.perf_counter() - started
