"""Whether a model takes gradients of gradients, as its code has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torch.nn import Module

_WORD = "create_graph"
_OTHERS = ("torch", "lightning", "pytorch_lightning", "lightning_fabric", "transformers")


def mentions_double_backward(root: Module) -> str | None:
    """Tells which method, or function that one calls, names `create_graph`; None if there is none.

    It reads the code of the classes of all modules, and of functions that they name; those of
    libraries are left out.

    Args:
        root: A model.
    """
    seen: set[int] = set()
    for kind in {base for module in root.modules() for base in type(module).__mro__}:
        if _is_users(kind.__module__):
            for value in vars(kind).values():
                function = getattr(value, "__func__", value)
                if isinstance(function, FunctionType) and _mentions(function, seen):
                    return f"{kind.__qualname__}.{function.__name__}"
    return None


@contextmanager
def explained() -> Iterator[None]:
    """Says what to set where torch refuses to differentiate what it has compiled twice.

    Raises:
        RuntimeError: It does.
    """
    try:
        yield
    except RuntimeError as error:
        if "double backward" not in str(error):
            raise
        raise RuntimeError(
            "This backward goes through gradients of gradients (create_graph=True), and what "
            "torch.compile has compiled can be differentiated once. Leave it as it is: "
            "compile='none' in the strategy, or LIGHTNING_GAUDI_COMPILE=none; or compile only "
            "what is differentiated once, with Compilation(regions=[...])."
        ) from error


def _is_users(module: str | None) -> bool:
    return (module or "").partition(".")[0] not in _OTHERS


def _mentions(function: FunctionType, seen: set[int]) -> bool:
    if id(function.__code__) in seen:
        return False
    seen.add(id(function.__code__))
    names: set[str] = set()
    for code in _codes(function.__code__):
        names.update(code.co_names)
        # Names of keyword arguments are one constant, a tuple.
        constants = [each if isinstance(each, tuple) else (each,) for each in code.co_consts]
        if any(_WORD in each for each in constants):
            return True
    return any(_mentions(each, seen) for each in _named(function, names))


def _named(function: FunctionType, names: set[str]) -> Iterator[FunctionType]:
    """Yields the user's functions that have one of these names where `function` is defined."""
    homes: list[Any] = [function.__globals__]
    found = [homes[0].get(name) for name in names]
    homes += [vars(each) for each in found if isinstance(each, ModuleType)]
    for home in homes:
        for name in names & home.keys():
            value = home[name]
            if isinstance(value, FunctionType) and _is_users(value.__module__):
                yield value


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yields the code, and that of functions defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
