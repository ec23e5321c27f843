"""One method of a module compiled in place: its `forward`, inside its hooks, or a step."""

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
"""After how many calls without gradients, each of which compiled a graph of its own, a module
computes as written without gradients: a generator's sequences are longer at each token. Batches of
so many lengths in a row are rare, and a fit that pads them has had all their graphs before."""


class CompiledMethod:
    """Stands as a module's `forward`, or another method, and compiles it when it is called.

    The module stays what it is: its class, the names of its weights, its hooks. These run outside
    the graph: those of FSDP2 and of ZeRO gather and release weights. A copy of the module, or a
    pickled one, computes as it was written, and so does the module itself where something else
    traces it (TorchScript, torch.fx, torch.export, torch.func) or differentiates it forward.

    What the program changes later holds. Before torch's compiler takes a graph it looks at the
    modules in it, their hooks, classes and attributes, but not at the methods of these classes, nor
    at hooks on all modules: these are looked at here. Once a method has changed, the module goes on
    as written; while there are such hooks, too.

    `Module.compile` compiles nothing of torch's own modules, such as Sequential, whose files the
    compiler skips unless they are called by others (torch 2.13), and puts itself around the hooks.

    Args:
        module: Whose method is compiled.
        settings: Arguments of `torch.compile`.
        reporter: Tells what falls out of graphs.
        name: The method's.
        inner: Those of modules in this one, for who calls these and not the module: they go with
            its first call, whose graph holds them.
        keeps_inner: They stay, for other methods than `forward` that call them. Modules in it that
            are alike no longer share graphs, since the compiler knows each by what is in it.
        goes_on: Whether what cannot be compiled is called as written. Not where the method has
            effects of its own, which a second call would repeat.
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
        """The method of a class that is marked `allow_in_graph`, as diffusers marks transformer
        blocks: a compiler around this one refuses to look it up (torch 2.13)."""
        self._classes = Classes(module)
        method = getattr(module, name)
        functools.update_wrapper(self, method)
        self._compiled: Any = torch.compile(_traceable(method), **settings)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the module's own method returns."""
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
        # An error of the user's own is raised as it is without a compiler.
        result = self._call_as_written(*args, **kwargs)
        self._compiled = None
        self._reporter.tell_failure(self.module, failure)
        return result

    def __getattr__(self, name: str) -> Any:
        """Returns what tools read of a method: its code, its globals, whose it is."""
        if name in ("module", "_name", "_own"):  # not yet there, in a copy
            raise AttributeError(name)
        return getattr(self._method(), name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Returns the class of a method, for `inspect` and for TorchScript."""
        return types.MethodType

    def _call_as_written(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module's own method, as its class has it now."""
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
        """Decides, before the first call, what becomes of those of modules in this one."""
        inner, self._inner = self._inner, ()
        for each in inner:
            if self._keeps_inner:
                each.keep()
            else:
                each.remove()

    def install(self) -> None:
        """Directs the module's calls to this object."""
        self.module.__dict__[self._name] = self

    def keep(self) -> None:
        """Leaves those of modules in this one in place, as a graph around it has seen them."""
        self._inner = ()

    def remove(self) -> None:
        """Gives the module its own method back."""
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
    """Tells if something but torch's compiler follows the operators, and has to see each."""
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
    """Returns a function whose code torch's compiler does not skip where it begins."""
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
    """Returns a class's own: graphs are shared by, and counted for, what has the same code."""
    return code.replace(co_name=f"{kind.__name__}.{name}")


_METHODS = (FunctionType, staticmethod, classmethod, property)


class Classes:
    """The classes of a module and of the modules in it, and their methods as they are now.

    torch's compiler takes it that methods stay (2.13): nothing that it looks at before it takes a
    graph tells that a class was given another one.

    Args:
        root: The module.
    """

    def __init__(self, root: Module) -> None:
        kinds = {kind for module in root.modules() for kind in type(module).__mro__}
        self._members = [vars(kind).values() for kind in kinds.difference(Module.__mro__)]
        self._before: list[Any] = [*chain.from_iterable(self._members)]

    def have_changed(self) -> bool:
        """Returns whether one has another method than when this was last asked."""
        # In each call of a compiled module: some 30 ns a method, in one go.
        if sum(map(len, self._members)) == len(self._before) and all(
            map(is_, chain.from_iterable(self._members), self._before)
        ):
            return False
        before, self._before = self._before, [*chain.from_iterable(self._members)]
        return _methods(before) != _methods(self._before)


def _methods(members: Sequence[Any]) -> list[int]:
    return [id(member) for member in members if isinstance(member, _METHODS)]
