"""Compiles one method of a module in place: its `forward`, inside of its hooks, or a step."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Sequence
from itertools import chain
from operator import is_
from types import FunctionType
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn import Module
from torch.nn.modules.module import _has_any_global_hook

from .graph_breaks import GraphBreakReporter

MAX_IN_A_ROW = 10
"""After so many calls without gradients in a row that each compiled a graph, a module runs
uncompiled without gradients: the sequences of a text generator grow with each token. So many new
lengths in a row are rare otherwise, and a fit that pads its batches has had all their graphs."""


class CompiledMethod:
    """Replaces a module's `forward`, or another method, and compiles it when it is called.

    The module keeps its class, the names of its weights, and its hooks. Hooks run outside of the
    graph, since those of FSDP2 and ZeRO gather and release weights. A copy of the module, or a
    pickled one, is uncompiled, and so is the module itself while something else traces it
    (TorchScript, torch.fx, torch.export, torch.func) or differentiates it in forward mode.

    Later changes by the program take effect. Before torch's compiler uses a graph, it checks the
    modules in it, their hooks, classes and attributes, but neither the methods of these classes nor
    hooks on all modules. These are checked here: the module runs uncompiled once a method has
    changed, and while there are such hooks.

    `Module.compile` would not do: it compiles nothing of torch's own modules, such as Sequential,
    whose files the compiler skips unless others call them (torch 2.13), and it wraps the hooks,
    too.

    Args:
        module: The module with the method.
        settings: Arguments of `torch.compile`.
        reporter: Reports what could not be compiled.
        name: The method's.
        inner: The compiled methods of inner modules, for programs that call these directly. They
            are removed at the first call of this module, whose graph contains them.
        keeps_inner: Whether they stay, for methods other than `forward` that call them. Equal inner
            modules then no longer share graphs, since the compiler distinguishes them.
        goes_on: Whether the method is called uncompiled if it cannot be compiled. Not for a method
            with side effects, which the second call would repeat.
    """

    def __init__(
        self,
        module: Module,
        settings: dict[str, Any],
        reporter: GraphBreakReporter,
        inner: Sequence[CompiledMethod] = (),
        *,
        name: str = "forward",
        keeps_inner: bool = False,
        goes_on: bool = True,
    ) -> None:
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
        from torch._dynamo.trace_rules import is_callable_allowed

        self.module = module
        self._name = name
        self._failures: tuple[type[Exception], ...] = ()
        if goes_on or reporter.raises:
            self._failures = TorchDynamoException, FailOnRecompileLimitHit
        self._inner = inner
        self._keeps_inner = keeps_inner
        self._reporter = reporter
        self._num_in_a_row = 0
        self._own = module.__dict__.get(name)
        self._kind = type(module)
        self._opaque = getattr(self._kind, name) if is_callable_allowed(self._kind) else None
        """The method of a class that is marked `allow_in_graph`, as diffusers does for transformer
        blocks. An outer compiler refuses to look such a method up (torch 2.13)."""
        self._classes = Classes(module)
        method = getattr(module, name)
        functools.update_wrapper(self, method)
        self._compiled: Any = torch.compile(_traceable(method), **settings)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the method, compiled if possible."""
        # Within an outer graph this method becomes part of that graph.
        if self._compiled is None or torch.compiler.is_compiling() or _is_traced():
            return self._call_as_written(*args, **kwargs)
        if type(self.module) is not self._kind or self._classes.have_changed():
            self._compiled = self._opaque = None
            self._reporter.tell_changed(self.module)
            return self._call_as_written(*args, **kwargs)
        if _has_any_global_hook():  # type: ignore[no-untyped-call]
            self._reporter.tell_global_hook(self.module)
            return self._call_as_written(*args, **kwargs)
        if self._inner:
            self._settle_inner()
        may_learn = torch.is_grad_enabled()
        if not may_learn and self._reporter.is_left(self._kind):
            return self._call_as_written(*args, **kwargs)
        before = self._reporter.count()
        try:
            result = self._compiled(*args, **kwargs)
        except self._failures as error:
            if self._reporter.raises:
                self._reporter.refuse(self.module, error)
            failure = error
        else:
            has_new_graph = self._reporter.tell_since(before, self.module)
            self._num_in_a_row = self._num_in_a_row + 1 if has_new_graph and not may_learn else 0
            if self._num_in_a_row == MAX_IN_A_ROW:
                self._reporter.leave(self.module)
            return result
        # Called again uncompiled, so that an error in the user's own code is raised as usual.
        result = self._call_as_written(*args, **kwargs)
        self._compiled = None
        self._reporter.tell_failure(self.module, failure)
        return result

    def __getattr__(self, name: str) -> Any:
        """Returns attributes of the original method, such as its code and globals, for tools."""
        # In a copy that is being made these are not set yet, and would recurse.
        if name in ("module", "_name", "_own"):
            raise AttributeError(name)
        return getattr(self._method(), name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Returns the class of a bound method, for `inspect` and TorchScript."""
        return types.MethodType

    def _call_as_written(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module's own method, as its class defines it now."""
        if self._own is not None:
            return self._own(*args, **kwargs)
        if self._opaque is not None and torch.compiler.is_compiling():
            return self._opaque(self.module, *args, **kwargs)
        return getattr(type(self.module), self._name)(self.module, *args, **kwargs)

    def _method(self) -> Callable[..., Any]:
        if self._own is not None:
            return self._own  # type: ignore[no-any-return]
        return types.MethodType(getattr(type(self.module), self._name), self.module)

    def _settle_inner(self) -> None:
        """Removes or keeps the compiled methods of inner modules before the first call."""
        inner, self._inner = self._inner, ()
        for each in inner:
            if self._keeps_inner:
                each.keep()
            else:
                each.remove()

    def install(self) -> None:
        """Replaces the module's method by this object."""
        self.module.__dict__[self._name] = self

    def keep(self) -> None:
        """Keeps the compiled methods of inner modules, which an outer graph has seen."""
        self._inner = ()

    def remove(self) -> None:
        """Restores the module's own method."""
        if self.module.__dict__.get(self._name) is not self:
            return
        del self.module.__dict__[self._name]
        if self._own is not None:
            self.module.__dict__[self._name] = self._own

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Returns the copied module's own method."""
        return copy.deepcopy(self._method(), memo)

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns the module's own method."""
        return getattr, (self.module, self._name)


def is_compiled(module: Module) -> bool:
    """Returns whether a `CompiledMethod` stands as the module's `forward`."""
    return isinstance(module.__dict__.get("forward"), CompiledMethod)


def _is_traced() -> bool:
    """Returns whether something other than torch's compiler traces the operators."""
    from torch.fx._symbolic_trace import is_fx_symbolic_tracing
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    return (
        torch._C._is_tracing()
        or forward_ad._current_level >= 0
        or torch._C._functorch.maybe_current_level() is not None
        or is_fx_symbolic_tracing()
        or get_proxy_mode() is not None
    )


def _traceable(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that torch's compiler does not skip by its file."""
    from torch._dynamo import trace_rules

    is_function = isinstance(method, types.FunctionType | types.MethodType)
    if is_function and not trace_rules.check(method):
        return method

    def call(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    kind: Any = type(getattr(method, "__self__", method))
    code = _code(kind, getattr(method, "__name__", "call"), call.__code__)
    return types.FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)


@functools.cache
def _code(kind: type, name: str, code: types.CodeType) -> types.CodeType:
    """Returns one code object for each class.

    torch shares graphs among functions with the same code object, and counts them for it.
    """
    return code.replace(co_name=f"{kind.__name__}.{name}")


_METHODS = (FunctionType, staticmethod, classmethod, property)


class Classes:
    """Detects changes to the methods of a module's classes.

    torch's compiler assumes that methods do not change (2.13): its guards do not check whether a
    class was given another method.

    Args:
        root: The module.
    """

    def __init__(self, root: Module) -> None:
        kinds = {kind for module in root.modules() for kind in type(module).__mro__}
        self._members = [vars(kind).values() for kind in kinds.difference(Module.__mro__)]
        self._before: list[Any] = [*chain.from_iterable(self._members)]

    def have_changed(self) -> bool:
        """Returns whether a class has other methods than at the last call."""
        # This runs in each call of a compiled module, so all methods are compared by identity in
        # one pass of C code, at some 30 ns each.
        if sum(map(len, self._members)) == len(self._before) and all(
            map(is_, chain.from_iterable(self._members), self._before)
        ):
            return False
        before, self._before = self._before, [*chain.from_iterable(self._members)]
        return _methods(before) != _methods(self._before)


def _methods(members: Sequence[Any]) -> list[int]:
    return [id(member) for member in members if isinstance(member, _METHODS)]
