"""A simulated card that shows in its numbers what it otherwise only says of them.

Its operators are the CPU's, so a float64 stays one, and a rule tells the user that it would not.
Whoever compares a card's numbers with what the rules say, as `lightning-gaudi verify` does, has the
card act on the rules that apply to it in a block of this.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from lightning_gaudi.simulator.rules import table
from lightning_gaudi.simulator.statistics import device

_INT32 = 2**31
_SMALLEST_E5M2 = 2.0**-16


@contextmanager
def acted() -> Iterator[None]:
    """Has this process's card act on its rules in the block."""
    mode = "lazy" if device().is_lazy() else "eager"
    rules = frozenset(key for key in table.applying() if table.find(key).mode in (None, mode))
    with _Acting(rules):
        yield


class _Acting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Changes arguments or results of the operators that a rule is about.

    Args:
        rules: The keys of those that apply.
    """

    def __init__(self, rules: frozenset[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rules = rules

    @override
    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        call: Callable[..., Any] = func
        if _is_of_card((args, kwargs)):
            for key in self._rules & _BY_OPERATOR.get(func.name(), frozenset()):
                call = functools.partial(_ACTIONS[key][1], call)
        result = call(*args, **(kwargs or {}))
        for each in _pytree.tree_leaves(result):
            if isinstance(each, torch.Tensor) and each.device.type == "hpu":
                self._narrow(each)
        return result

    def _narrow(self, result: torch.Tensor) -> None:
        """Keeps in a smaller type what a card has in one."""
        with _silently():
            if result.dtype == torch.float64 and "float64-demoted" in self._rules:
                result.copy_(result.float())
            is_narrow = self._rules & {"int64-as-int32", "int64-as-int32-on-gaudi1"}
            if result.dtype == torch.int64 and is_narrow:
                result.copy_((result + _INT32) % (2 * _INT32) - _INT32)


@contextmanager
def _silently() -> Iterator[None]:
    device().pause_rules()
    try:
        yield
    finally:
        device().resume_rules()


def _is_of_card(arguments: Any) -> bool:
    """Returns whether a tensor among the arguments is on the card, or is to come there."""
    return any(
        (isinstance(each, torch.Tensor) and each.device.type == "hpu")
        or (isinstance(each, torch.device) and each.type == "hpu")
        for each in _pytree.tree_leaves(arguments)
    )


def _overflow(call: Any, *args: Any, **kwargs: Any) -> Any:
    """A copy from the host to the card makes inf of what float32 does not hold."""
    result = call(*args, **kwargs)
    if isinstance(result, torch.Tensor) and result.dtype == torch.float64:
        with _silently():
            is_beyond = result.abs() > torch.finfo(torch.float32).max
            result.masked_fill_(is_beyond, float("inf"))
    return result


def _leave_out(call: Any, x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return out


def _rows_of_uint8(call: Any, x: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
    rows = [
        each.long() if isinstance(each, torch.Tensor) and each.dtype == torch.uint8 else each
        for each in indices
    ]
    values = args[0]
    num_written = max(each.numel() for each in rows if each is not None)
    return call(x, rows, values.flatten()[:1].expand(num_written), *args[1:], **kwargs)


def _bincount(call: Any, x: Any, weights: Any = None, *args: Any, **kwargs: Any) -> Any:
    return call(x, None if weights is None else weights.float(), *args, **kwargs).double()


def _other_values(call: Any, *args: Any, **kwargs: Any) -> Any:
    return call(*args, **kwargs) + 1


def _complex_on_host(call: Any, real: torch.Tensor, imaginary: torch.Tensor) -> torch.Tensor:
    return torch.complex(real.cpu(), imaginary.cpu())


def _tanh(call: Any, x: torch.Tensor, **kwargs: Any) -> Any:
    return call(x, approximate="tanh")


def _reversed(call: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    result = call(x, *args, **kwargs)
    return (result[0].flip(0), *result[1:])


def _mirrored(call: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return call(x, *args, **kwargs).neg_().add_(1)


def _by_reciprocal(call: Any, x: torch.Tensor, y: Any) -> Any:
    return x * y.reciprocal() if isinstance(y, torch.Tensor) else call(x, y)


def _not_a_number(call: Any, x: torch.Tensor, **kwargs: Any) -> Any:
    factor, info = call(x, **kwargs)
    return factor * float("nan"), info


def _flushed(call: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return call(x * (x.abs() >= _SMALLEST_E5M2), *args, **kwargs)


def _in_float32(call: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
    result = call(tensors, *args, **kwargs)
    result[1].wait()
    with _silently():
        for each in tensors:
            if each.dtype in (torch.int32, torch.int64):
                each.copy_(each.float().to(each.dtype))
    return result


def _lost(call: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
    before = [each.clone() for each in outputs]
    work = call(outputs, *args, **kwargs)
    work.wait()
    for each, kept in zip(outputs, before, strict=True):
        each.copy_(kept)
    return work


_ACTIONS: dict[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
    "float64-overflows": (("aten::_to_copy", "aten::copy_"), _overflow),
    "nonzero-out-untouched": (("aten::nonzero.out",), _leave_out),
    "uint8-mask-as-indices": (("aten::index_put_", "aten::_index_put_impl_"), _rows_of_uint8),
    "bincount-in-32-bits": (("aten::bincount",), _bincount),
    "gather-of-int64-wrong": (("aten::gather",), _other_values),
    "scatter-from-itself-wrong": (("aten::scatter.src",), _other_values),
    "complex-stays-on-host": (("aten::complex",), _complex_on_host),
    "gelu-as-tanh": (("aten::gelu",), _tanh),
    "unsorted-unique-order": (("aten::_unique2",), _reversed),
    "random-numbers-differ": (("aten::uniform_",), _mirrored),
    "division-not-precise": (("aten::div.Tensor",), _by_reciprocal),
    "cholesky-nan": (("aten::linalg_cholesky_ex",), _not_a_number),
    "stochastic-rounding-flushes": (("hpu::cast_to_fp8_v2",), _flushed),
    "integers-reduced-in-float32": (("c10d::allreduce_",), _in_float32),
    "coalesced-reduce-scatter-lost": (("c10d::reduce_scatter_tensor_coalesced_",), _lost),
}
"""By a rule's key the operators that it changes, and how; types narrow whatever the operator."""

_BY_OPERATOR: dict[str, frozenset[str]] = {
    name: frozenset(key for key, (names, _) in _ACTIONS.items() if name in names)
    for names, _ in _ACTIONS.values()
    for name in names
}

ACTED = frozenset(_ACTIONS) | {"float64-demoted", "int64-as-int32", "int64-as-int32-on-gaudi1"}
"""The rules that a card acts on here: what one that was measured otherwise does not."""
