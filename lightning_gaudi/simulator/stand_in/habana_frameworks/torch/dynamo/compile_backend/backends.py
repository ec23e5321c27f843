"""The backend "hpu_backend": graphs are traced and counted, and run operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._dynamo.backends.registry import register_backend

from ...._missing import missing
from ..._counters import compiled_graphs
from ...internal import bridge_config
from ...utils.debug import dynamo_utils
from ...utils.internal import is_lazy
from . import config


@register_backend
def hpu_backend(
    graph_module: torch.fx.GraphModule, example_inputs: Sequence[torch.Tensor], **kwargs: Any
) -> Callable[..., Any]:
    """Compile a graph for the HPU.

    Args:
        graph_module: What torch.compile traced.
        example_inputs: Its inputs.
        **kwargs: `options`, of those in `config`; they tune a card's compiler and have no effect.

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
            fw_compiler=_compile,
            bw_compiler=_compile,
            inference_compiler=_compile,
            keep_inference_input_mutations=config.keep_input_mutations,
        )
        return compile_graph(graph_module, example_inputs)


def _is_disallowed() -> bool:
    get = getattr(bridge_config, "get_pt_hpu_disallow_torch_compile", None)
    return get is not None and get()


def _patched(options: Mapping[str, Any] | None) -> AbstractContextManager[None]:
    """The options set within a `with` block."""
    for name in options or {}:
        if name not in config._config:
            raise AttributeError(
                f'torch.compile(backend="hpu_backend") has no option {name!r}. Pass one of '
                f"{', '.join(sorted(config._config))}."
            )
    return config.patch(dict(options or {}))


def _compile(
    graph_module: torch.fx.GraphModule, example_inputs: Sequence[torch.Tensor]
) -> Callable[..., Any]:
    from torch._functorch.aot_autograd import make_boxed_func

    compiled_graphs.num_graphs += 1
    dynamo_utils.count_graph(graph_module)
    return make_boxed_func(graph_module.forward)


def import_compilers() -> None:
    """Import the compiler now; the import of this module has done it."""


def import_hpu_partition() -> None:
    """Import what splits graphs now; none are split."""


__getattr__ = missing(__name__)
