"""Compiles a whole model or its regions as a run has chosen, and restores it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_warn
from torch.nn import Module

from lightning_gaudi._core import vendor

from .graph_breaks import GraphBreakReporter
from .method import CompiledMethod
from .regions import (
    declared_methods,
    find_parts,
    find_regions,
    has_blocks,
    has_compiled_parts,
)
from .settings import Choice, Compilation

_has_told_lazy = False


def is_wanted(choice: Choice, module: Module) -> bool:
    """Returns whether anything of the module is to be compiled.

    Nothing is in lazy mode, where the vendor's bridge compiles; if the user has compiled the
    module; and by default if it takes gradients of gradients, which torch's compiler does not
    support.
    """
    global _has_told_lazy
    compilation, origin = choice
    if compilation.mode == "none":
        return False
    if vendor.is_lazy():
        if origin is not None and not _has_told_lazy:
            _has_told_lazy = True
            rank_zero_warn(
                f"{origin} asks for {compilation.mode!r} to be compiled by torch, but in lazy mode "
                "(PT_HPU_LAZY_MODE=1) the vendor's bridge compiles all by itself: torch compiles "
                "nothing. Leave it out, or set PT_HPU_LAZY_MODE=0."
            )
        return False
    if has_compiled_parts(module):
        return False
    if origin is None and (place := mentions_double_backward(module)) is not None:
        rank_zero_warn(
            f"Nothing is compiled: {place} uses create_graph, and torch.compile cannot "
            "differentiate twice. Compile what is differentiated once by regions=[...], or pass "
            "compile='none' to say so."
        )
        return False
    return True


class CompiledRegions:
    """Compiles the regions of a model in place until `remove`.

    Args:
        root: The model.
        compilation: How.
        with_root: See `find_regions`.
    """

    def __init__(self, root: Module, compilation: Compilation, *, with_root: bool) -> None:
        regions = find_regions(root, compilation.regions, with_root=with_root)
        self.reporter = GraphBreakReporter(raises=compilation.on_give_up == "error")
        settings = arguments(compilation)
        self.modules = regions
        """The regions."""
        self.compiled: list[Module] = []
        """Those, and the modules in them that are compiled in case they are called instead."""
        self._forwards: dict[int, CompiledMethod] = {}
        for region in regions:
            # From the inside out, so that each gets the compiled methods of its inner modules.
            for module in [*reversed(find_parts(region)), region]:
                inner = [
                    self._forwards[id(each)]
                    for each in module.modules()
                    if id(each) in self._forwards
                ]
                is_model = module is region and has_blocks(region)
                forward = CompiledMethod(
                    module, settings, self.reporter, inner, keeps_inner=is_model
                )
                self._forwards[id(module)] = forward
                self.compiled.append(module)
        self._methods = [
            CompiledMethod(module, settings, self.reporter, name=name)
            for module, name in declared_methods(root, regions)
        ]
        for method in (*self._forwards.values(), *self._methods):
            method.install()

    def remove(self) -> None:
        """Restores the model."""
        for method in (*self._forwards.values(), *self._methods):
            method.remove()
        self.reporter.close()


class CompiledWhole:
    """Compiles a module as a whole until `remove`."""

    def __init__(self, module: Module, compilation: Compilation) -> None:
        self.reporter = GraphBreakReporter(raises=compilation.on_give_up == "error")
        self._forward = CompiledMethod(module, arguments(compilation), self.reporter)
        self._forward.install()

    def remove(self) -> None:
        """Restores the module."""
        self._forward.remove()
        self.reporter.close()


def arguments(compilation: Compilation) -> dict[str, Any]:
    """Returns the arguments of `torch.compile`.

    Raises:
        ValueError: The vendor's compiler has no such option.
    """
    check_options(compilation.options)
    found: dict[str, Any] = {
        "backend": vendor.COMPILE_BACKEND,
        "dynamic": compilation.dynamic,
        "fullgraph": compilation.on_give_up == "error",
    }
    if compilation.options:
        found["options"] = dict(compilation.options)
    _set_up_compiler(compilation.recompile_limit)
    return found


def check_options(options: Mapping[str, Any] | None) -> None:
    """Raises for an option that the installed vendor's compiler does not have.

    Raises:
        ValueError: There is one.
    """
    if not options:
        return
    known = sorted(vendor.compiler_config().get_config_copy())
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known) or known
            raise ValueError(
                f"options={dict(options)!r}: the vendor's compiler has no option {name!r}. Did you "
                f"mean {', '.join(map(repr, close))}?"
            )


def _set_up_compiler(limit: int) -> None:
    """Sets options of torch's compiler that hold for the whole process.

    Args:
        limit: For how many shapes a function is compiled; a higher setting of the user's stays.
    """
    from torch._dynamo import config

    # The option was named cache_size_limit before torch 2.7, and that is an alias since.
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    setattr(config, name, max(limit, getattr(config, name)))
    # DDP would split graphs at its buckets to overlap reductions, which are not in these graphs.
    config.optimize_ddp = False
    # Hooks that are added or removed after a module was compiled must take effect.
    config.skip_nnmodule_hook_guards = False


_WORD = "create_graph"
_OTHERS = ("torch", "lightning", "pytorch_lightning", "lightning_fabric", "transformers")


def mentions_double_backward(root: Module) -> str | None:
    """Returns the method whose code, or that of a function it calls, names `create_graph`, or None.

    It searches the bytecode of the classes of all modules, and of functions that they name, except
    for those of libraries.

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
def explaining_double_backward() -> Iterator[None]:
    """Explains torch's error about a second derivative of compiled code.

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
        # The names of keyword arguments are a constant of their own, a tuple.
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
