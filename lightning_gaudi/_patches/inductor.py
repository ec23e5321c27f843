"""Makes `torch.compile(model)` without a backend use the vendor's on the HPU.

torch's default, inductor, generates no code for an HPU and fails with `KeyError: 'hpu'`. The
backend is chosen for each graph in `compile_fx`, which all users of inductor call, and where the
devices are known: a graph with a tensor on the HPU goes to `"hpu_backend"`, and every other one to
inductor as before. `torch.compiler.set_default_backend` would hold for the whole process, and for
the graphs of other devices, too.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from lightning_gaudi._core import vendor

from .apply import wrap

_has_warned = False


def patch_inductor(module: ModuleType, family: Any) -> None:
    """Makes `torch._inductor.compile_fx` hand graphs on the HPU to the vendor.

    Args:
        module: That, just imported; torch imports it when it compiles.
        family: Not used.
    """

    @wrap("inductor", module, "compile_fx")
    def compile_fx(
        original: Callable[..., Any], model_: Any, example_inputs_: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not _is_on_hpu(model_, example_inputs_) or _is_left_to_inductor():
            return original(model_, example_inputs_, *args, **kwargs)
        if vendor.is_lazy():
            raise RuntimeError(
                "torch.compile was given a model on the HPU, and PT_HPU_LAZY_MODE=1 asks for lazy "
                "mode, which gathers and compiles graphs itself. Set PT_HPU_LAZY_MODE=0 to compile "
                "with torch, or do not call torch.compile."
            )
        _warn_of(kwargs.get("config_patches") or {})
        from torch._dynamo.backends.registry import lookup_backend

        return lookup_backend(vendor.COMPILE_BACKEND)(model_, example_inputs_)


def _is_on_hpu(graph_module: Any, example_inputs: Iterable[Any]) -> bool:
    """Returns whether the graph takes a tensor on the HPU, holds one, or makes one."""
    graph = getattr(graph_module, "graph", None)
    values: list[Any] = [list(example_inputs)]
    for node in getattr(graph, "nodes", ()):
        values.append(node.meta.get("example_value", node.meta.get("val")))
    return any(
        isinstance(leaf, torch.Tensor) and leaf.device.type == "hpu" for leaf in tree_leaves(values)
    )


def _is_left_to_inductor() -> bool:
    """Returns whether inductor can generate code for the HPU, or writes a package ahead of time."""
    from torch._inductor.codegen.common import device_codegens
    from torch._inductor.virtualized import V

    return "hpu" in device_codegens or bool(V.aot_compilation)


def _warn_of(settings: Mapping[str, Any]) -> None:
    """Warns once, on the first rank, that settings of inductor have no effect here."""
    global _has_warned
    if not settings or _has_warned or os.environ.get("RANK", "0") != "0":
        return
    _has_warned = True
    ours = vendor.COMPILE_BACKEND
    warnings.warn(
        f"torch.compile was given settings of inductor ({', '.join(sorted(settings))}, by mode= or "
        f"options=). On the HPU the model is compiled by {ours!r}, which has no such settings: "
        f"they are ignored. Drop them, or pass backend={ours!r} and the vendor's options.",
        UserWarning,
        stacklevel=2,
    )
