"""Weights without values: a model of many gigabytes is made in a moment, and takes no memory.

What torch allocates on the host takes memory when it is first written. A rehearsal needs none of
the values, so what would fill large tensors does nothing.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import init
from torch.overrides import TorchFunctionMode
from typing_extensions import override

_LARGE_BYTES = 2**20

_FILLS = frozenset(
    f"{name}_"
    for name in (
        *("add", "clamp", "copy", "div", "erfinv", "exponential", "fill", "mul", "normal"),
        *("random", "sub", "trunc_normal", "uniform", "zero"),
    )
)
"""Methods that write into a tensor, by which models are initialized and weights loaded."""


class EmptyWeights(TorchFunctionMode):
    """Leaves large tensors of floating point numbers on the host as they are."""

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        # torch 2.13 sends what torch.nn.init is called with here, by name.
        target = args[0] if args else given.get("tensor")
        is_fill = getattr(func, "__module__", None) == init.__name__ or _name(func) in _FILLS
        if is_fill and _name(func).endswith("_") and _is_large(target):
            return target
        return func(*args, **given)


def _is_large(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.device.type == "cpu"
        and value.is_floating_point()
        and value.numel() * value.element_size() > _LARGE_BYTES
    )


def _name(func: Any) -> str:
    return getattr(func, "__name__", "")
