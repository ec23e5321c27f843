"""What the operators of a step compute and move, counted as they are called."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from lightning_gaudi._core.flops import FlopCounter


class Work(FlopCounter):  # type: ignore[no-untyped-call]
    """Counts while it is on. What is compiled runs as it was written then."""

    def __init__(self) -> None:
        super().__init__()
        self.moved_bytes = 0
        """Read and written by all operators that compute, if none is fused with another."""
        self.is_complete = True
        """Whether the operations of all products of matrices are known."""

    @override
    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        try:
            result = super().__torch_dispatch__(func, types, args, kwargs)
        except ValueError:  # nobody knows how many; what the operator itself raises comes again
            self.is_complete = False
            result = func(*args, **(kwargs or {}))
        if not func.is_view:
            for each in tree_leaves((args, kwargs, result)):
                if isinstance(each, Tensor) and each.device.type == "hpu":
                    self.moved_bytes += each.numel() * each.element_size()
        return result
