"""Programs that tell whether a captured graph goes on with what its capture saw, in lazy mode.

Each returns whether the card did as its rule says.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Program = Callable[[torch.device], bool]


class _Net(nn.Module):
    """Calls a function with itself and its argument, and counts how often Python runs it."""

    def __init__(self, use: Callable[[_Net, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.num_calls = 0
        self.scale = 2.0
        self.__dict__["use"] = use  # not registered as a submodule

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        found: torch.Tensor = self.__dict__["use"](self, x)
        return found


def _captured(use: Callable[[_Net, torch.Tensor], torch.Tensor], device: torch.device) -> Any:
    hpu: Any = torch.hpu  # type: ignore[attr-defined]
    return hpu.wrap_in_hpu_graph(_Net(use).to(device).eval())


def _ones(device: torch.device) -> torch.Tensor:
    return torch.ones(2, 4, device=device)


def _called(net: Any, device: torch.device, between: Callable[[], object]) -> list[torch.Tensor]:
    """Captures and replays, changes something, and replays again."""
    with torch.no_grad():
        found = [net(_ones(device)).cpu() for _ in range(2)]
        between()
        return [*found, net(_ones(device)).cpu()]


def _python_state(device: torch.device) -> bool:
    net = _captured(lambda net, x: x * 2, device)
    _called(net, device, lambda: None)
    return bool(net.num_calls < 3)


def _stale(device: torch.device) -> bool:
    net = _captured(lambda net, x: x * net.scale, device)
    _, before, after = _called(net, device, lambda: setattr(net, "scale", 3.0))
    return torch.equal(before, after)


def _host_values(device: torch.device) -> bool:
    values = [1.0, 2.0, 3.0, 4.0]
    net = _captured(lambda net, x: x + torch.tensor(values).to(x.device), device)
    _, before, after = _called(net, device, lambda: values.__setitem__(0, 9.0))
    return torch.equal(before, after)


def _host_random(device: torch.device) -> bool:
    net = _captured(lambda net, x: x * random.random(), device)
    first, second, third = _called(net, device, lambda: None)
    return torch.equal(first, second) and torch.equal(second, third)


def _not_written(device: torch.device) -> bool:
    hpu: Any = torch.hpu  # type: ignore[attr-defined]
    wrapped = hpu.graphs.wrap_in_hpu_graph_func(lambda cache, x: cache.add_(x).sum())
    first, second = torch.zeros(2, 4, device=device), torch.zeros(2, 4, device=device)
    with torch.no_grad():
        for cache in (first, first, second):
            wrapped(cache, _ones(device))
    return not second.cpu().count_nonzero()


def _returned(device: torch.device) -> bool:
    hpu: Any = torch.hpu  # type: ignore[attr-defined]
    wrapped = hpu.graphs.wrap_in_hpu_graph_func(
        lambda x: (x + 1, x.view(-1)), disable_tensor_cache=True
    )
    with torch.no_grad():
        first, second = _ones(device), _ones(device) * 3
        wrapped(first)
        found: torch.Tensor = wrapped(second)[1].cpu()
    return not torch.equal(found, torch.full((8,), 3.0))


GRAPHS: dict[str, Program] = {
    "graph-python-state": _python_state,
    "graph-stale-value": _stale,
    "graph-host-values": _host_values,
    "graph-host-random": _host_random,
    "graph-input-not-written": _not_written,
    "graph-input-returned": _returned,
}
"""The programs by the key of a rule's row."""
