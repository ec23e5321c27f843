"""torch's own optimizers, stepping all weights of a group at once.

Left to themselves they do so on CUDA and a few other devices that have kernels for lists. An HPU
has them too, but is not in torch's list (2.13, `utils/_foreach_utils.py`): each weight would cost
about a dozen launches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer


@contextmanager
def stepping_at_once(optimizer: Any) -> Iterator[None]:
    """Lets an optimizer's groups step at once in this block, where their user has not said how.

    Args:
        optimizer: Any; only torch's own have the choice. Its groups, and so its checkpoints, are as
            they were afterwards.
    """
    groups = [group for group in _groups(optimizer) if _may(group)]
    for group in groups:
        group["foreach"] = True
    try:
        yield
    finally:
        for group in groups:
            group["foreach"] = None


def _groups(optimizer: Any) -> list[dict[str, Any]]:
    is_torchs = isinstance(optimizer, Optimizer) and type(optimizer).__module__.startswith(
        "torch.optim."
    )
    return optimizer.param_groups if is_torchs else []


def _may(group: dict[str, Any]) -> bool:
    if group.get("foreach", False) is not None or group.get("fused") or group["differentiable"]:
        return False
    if any(isinstance(value, Tensor) for name, value in group.items() if name != "params"):
        return False
    # Of each weight in each step: what a Parameter proper holds is a Tensor, and asking for it as
    # `data` would make a tensor.
    weights = group["params"]
    kinds = {Tensor if kind is Parameter else kind for kind in map(type, weights)}
    return len(kinds) == 1 and all(
        weight.is_hpu and not weight.dtype.is_complex for weight in weights
    )
