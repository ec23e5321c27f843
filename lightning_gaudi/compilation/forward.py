"""One module compiled in place: its `forward`, inside its hooks."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import Module

from .giving_up import Watch

_ATTRIBUTE = "forward"


class CompiledForward:
    """Stands as a module's `forward`, and compiles it when it is called.

    The module stays what it is: its class, the names of its weights, its hooks. These run outside
    the graph: those of FSDP2 and of ZeRO gather and release weights. A copy of the module, or a
    pickled one, computes as it was written.

    `Module.compile` compiles nothing of torch's own modules, such as Sequential, whose files the
    compiler skips unless they are called by others (torch 2.13), and puts itself around the hooks.

    Args:
        module: What is compiled.
        settings: Arguments of `torch.compile`.
        watch: Tells what falls out of graphs.
        inner: Those of modules in this one, for who calls these and not the module: they go with
            its first call, whose graph holds them.
        keeps_inner: They stay, for other methods than `forward` that call them. Modules in it that
            are alike no longer share graphs, since the compiler knows each by what is in it.
    """

    def __init__(
        self,
        module: Module,
        settings: dict[str, Any],
        watch: Watch,
        inner: Sequence[CompiledForward] = (),
        *,
        keeps_inner: bool = False,
    ) -> None:
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

        self.module = module
        self._failures = TorchDynamoException, FailOnRecompileLimitHit
        self._inner = inner
        self._keeps_inner = keeps_inner
        self._original: Any = module.forward
        self._watch = watch
        functools.update_wrapper(self, self._original)
        self._compiled: Any = torch.compile(_traceable(self._original), **settings)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module's own `forward` returns."""
        if self._compiled is None or torch.compiler.is_compiling():
            return self._original(*args, **kwargs)
        if self._inner:
            self._settle_inner()
        before = self._watch.count()
        try:
            result = self._compiled(*args, **kwargs)
        except self._failures as error:
            if self._watch.raises:
                self._watch.refuse(self.module, error)
            failure = error
        else:
            self._watch.tell_since(before, self.module)
            return result
        # An error of the user's own is raised as it is without a compiler.
        result = self._original(*args, **kwargs)
        self._compiled = None
        self._watch.tell_failure(self.module, failure)
        return result

    def _settle_inner(self) -> None:
        """Before the first call: decide what becomes of those of modules in this one."""
        inner, self._inner = self._inner, ()
        for each in inner:
            if self._keeps_inner:
                each.keep()
            else:
                each.remove()

    def install(self) -> None:
        """Have the module's calls come here."""
        self.module.__dict__[_ATTRIBUTE] = self

    def keep(self) -> None:
        """Leave those of modules in this one where they are, as a graph around it has seen them."""
        self._inner = ()

    def remove(self) -> None:
        """Give the module its own `forward` back."""
        if self.module.__dict__.get(_ATTRIBUTE) is not self:
            return
        del self.module.__dict__[_ATTRIBUTE]
        if self.module.forward != self._original:
            self.module.__dict__[_ATTRIBUTE] = self._original

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """The copied module's own `forward`."""
        return copy.deepcopy(self._original, memo)

    def __reduce__(self) -> tuple[Any, ...]:
        """The module's own `forward`."""
        return getattr, (self.module, _ATTRIBUTE)


def is_compiled(module: Module) -> bool:
    """Whether a `CompiledForward` stands in the module."""
    return isinstance(module.__dict__.get(_ATTRIBUTE), CompiledForward)


def _traceable(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose code torch's compiler does not skip where it begins."""
    from torch._dynamo import trace_rules

    if not trace_rules.check(forward):
        return forward

    def call(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    kind: Any = type(getattr(forward, "__self__", None))
    code = _code(kind, call.__code__)
    return types.FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)


@functools.cache
def _code(kind: type, code: types.CodeType) -> types.CodeType:
    """A class's own: graphs are shared by, and counted for, what has the same code."""
    return code.replace(co_name=f"{kind.__name__}.forward")
