"""Adds ranges for the submodules of a model to a trace."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.profiler import record_function
from torch.utils.hooks import RemovableHandle

from lightning_gaudi.compilation.method import CompiledMethod, is_compiled


class ModuleRanges:
    """Records the forward of each submodule, like Lightning's RegisterRecordFunction.

    Unlike that, it closes the range of a forward that raises, handles a module that calls itself,
    and leaves out compiled modules: torch.compile would compile again when the hooks come and go,
    and a ScriptModule does not take hooks.

    Args:
        model: The model, whose submodules are shown by their names in `named_modules`.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._handles: list[RemovableHandle] = []

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state without the model, which is not to be pickled along."""
        return {"_model": nn.Module(), "_handles": []}

    def show(self, is_shown: bool) -> None:
        """Adds or removes the hooks."""
        if is_shown and not self._handles:
            compiled = _compiled_modules(self._model)
            for name, module in self._model.named_modules():
                if name and module not in compiled:
                    self._hook(name, module)
        elif not is_shown:
            for handle in self._handles:
                handle.remove()
            self._handles.clear()

    def _hook(self, name: str, module: nn.Module) -> None:
        kind = type(module)
        # TensorBoard's plugin recognizes Lightning's modules by this prefix.
        title = f"[pl][module]{kind.__module__}.{kind.__name__}: {name}"
        entered: list[record_function] = []
        self._handles += [
            module.register_forward_pre_hook(partial(_enter, title, entered)),
            module.register_forward_hook(partial(_exit, entered), always_call=True),
        ]


def _compiled_modules(model: nn.Module) -> set[nn.Module]:
    """Returns the modules whose hooks would be compiled, or that take no hooks."""
    # `_compiler_ctx` is Lightning's mark of a model that came compiled.
    if getattr(model, "_compiler_ctx", None) or any(
        isinstance(each, CompiledMethod) for each in vars(model).values()
    ):
        return set(model.modules())
    found: set[nn.Module] = set()
    for module in model.modules():
        if is_compiled(module):
            found.update({*module.modules()} - {module})
        if module._compiled_call_impl or isinstance(module, torch.jit.ScriptModule):
            found.update(module.modules())
        elif "_orig_mod" in module._modules:
            # The wrapper that torch.compile(module) returns runs its own hooks outside of the
            # graph.
            found.update({*module.modules()} - {module})
    return found


def _enter(title: str, entered: list[record_function], *_: Any) -> None:
    # A compiled function may call the module, which the modules do not show.
    if not torch.compiler.is_compiling():
        entered.append(record_function(title))
        entered[-1].__enter__()  # type: ignore[no-untyped-call]


def _exit(entered: list[record_function], *_: Any) -> None:
    if not torch.compiler.is_compiling() and entered:
        entered.pop().__exit__(None, None, None)
