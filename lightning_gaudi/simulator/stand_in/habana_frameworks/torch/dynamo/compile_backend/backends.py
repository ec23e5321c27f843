"""Implements "hpu_backend": graphs are traced, counted, and run operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch._dynamo.backends.registry import register_backend

from ...._missing import missing
from ..._counters import compiled_graphs
from ..._launch import one_launch
from ...internal import bridge_config
from ...utils.debug import dynamo_utils
from ...utils.internal import is_lazy
from . import config
from ._program import compile_program


@register_backend
def hpu_backend(
    graph_module: torch.fx.GraphModule, example_inputs: Sequence[torch.Tensor], **kwargs: Any
) -> Callable[..., Any]:
    """Compiles a graph for the HPU.

    Args:
        graph_module: The graph that torch.compile traced.
        example_inputs: Inputs of the graph.
        **kwargs: `options`, as `config` has them; they tune a card's compiler and have no effect.

    Returns:
        The compiled function.

    Raises:
        AttributeError: There is no such option.
        RuntimeError: The process runs in lazy mode, or the environment disallows compiling.
    """
    if is_lazy():
        raise RuntimeError(
            'torch.compile(backend="hpu_backend") needs eager mode, and PT_HPU_LAZY_MODE asks for '
            "lazy mode. Set PT_HPU_LAZY_MODE=0, or do not compile."
        )
    if _is_disallowed():
        raise RuntimeError(
            "PT_HPU_DISALLOW_TORCH_COMPILE is set, and torch.compile is called. Unset it, or do "
            "not compile."
        )
    from torch._dynamo.backends.common import aot_autograd

    with _patched(kwargs.get("options")):
        compile_graph = aot_autograd(
            fw_compiler=partial(_compile, "forward"),
            bw_compiler=partial(_compile, "backward"),
            inference_compiler=partial(_compile, "inference"),
            keep_inference_input_mutations=config.keep_input_mutations,
        )
        return compile_graph(graph_module, example_inputs)


# torch.compiler.reset() calls `reset` of each backend that has it.
hpu_backend.reset = compiled_graphs.forget  # type: ignore[attr-defined]


def _is_disallowed() -> bool:
    get = getattr(bridge_config, "get_pt_hpu_disallow_torch_compile", None)
    return get is not None and get()


def _patched(options: Mapping[str, Any] | None) -> AbstractContextManager[None]:
    """Returns the options set within a `with` block."""
    for name in options or {}:
        if name not in config._config:
            raise AttributeError(
                f'torch.compile(backend="hpu_backend") has no option {name!r}. Pass one of '
                f"{', '.join(sorted(config._config))}."
            )
    return config.patch(dict(options or {}))


def _compile(
    role: str, graph_module: torch.fx.GraphModule, example_inputs: Sequence[torch.Tensor]
) -> Callable[..., Any]:
    from torch._functorch.aot_autograd import make_boxed_func

    kind, shapes = _describe(graph_module, example_inputs)
    compiled_graphs.add((role, kind), shapes)
    dynamo_utils.count_graph(graph_module)

    forward = compile_program(graph_module) or graph_module.forward

    def launch(*args: Any) -> Any:
        with one_launch():
            return forward(*args)

    return make_boxed_func(launch)


def _describe(
    graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[Hashable, list[list[object]]]:
    """Returns what the graph shares with those for other sizes, and the shapes of its inputs."""
    tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)]
    # A graph for varying sizes has operators that ask for the sizes, besides those that compute.
    operators = tuple(
        str(node.target)
        for node in graph_module.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload) and "sym_" not in str(node.target)
    )
    kind = (operators, tuple(str(tensor.dtype) for tensor in tensors))
    return kind, [list(tensor.shape) for tensor in tensors]


def import_compilers() -> None:
    """Imports the compiler now; the import of this module has done it."""


def import_hpu_partition() -> None:
    """Imports what splits graphs now; none are split."""


__getattr__ = missing(__name__)
