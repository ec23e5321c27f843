"""What a dry run changes of a model: its weights have no values, and it may checkpoint.

A model of many gigabytes is made in a moment, and takes no memory. What torch allocates
on the host takes memory when it is first written. A rehearsal needs none of the values, so what
would fill large tensors does nothing.
"""

from __future__ import annotations

from contextlib import suppress
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


_ENABLE = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
_DISABLE = ("activation_checkpointing_disable", "gradient_checkpointing_disable")


def set_checkpointing(model: Any, *, is_on: bool) -> None:
    """Makes modules of transformers compute activations again in backward, or not."""
    for module in model.modules():
        for name in _ENABLE if is_on else _DISABLE:
            # Of the class: a module's `__getattr__` may raise, or ask the module that it wraps.
            if hasattr(type(module), name):
                with suppress(ValueError):  # of a model that cannot
                    getattr(module, name)()
                break


def can_checkpoint(model: Any) -> bool:
    """Returns whether a module of a model can."""
    return any(
        any(hasattr(kind, name) for name in _ENABLE)
        and getattr(kind, "supports_gradient_checkpointing", True)  # of transformers
        for kind in map(type, model.modules())
    )
