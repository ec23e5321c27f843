"""Compiles the backward pass as a whole."""

from __future__ import annotations

from typing import Any

import torch

from ...._missing import missing


def enable_compiled_autograd(is_dynamic: bool = False, **kwargs: Any) -> None:
    """Traces every backward pass when it runs, and compiles it by `hpu_backend`.

    Call it before the first `torch.compile`.

    Args:
        is_dynamic: Whether sizes may change without a new graph.
        **kwargs: What `torch.compile` is given.
    """
    from torch._dynamo import compiled_autograd

    def compile_backward(graph_module: torch.fx.GraphModule) -> Any:
        return torch.compile(graph_module, backend="hpu_backend", **kwargs)

    torch._dynamo.reset()
    compiled_autograd._enable(compile_backward, is_dynamic).__enter__()
    torch._dynamo.config.optimize_ddp = "python_reducer"


__getattr__ = missing(__name__)
