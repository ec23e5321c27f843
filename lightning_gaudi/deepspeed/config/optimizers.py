"""Handles optimizers that the settings name, the vendor's among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.nn import Parameter
from torch.optim import Optimizer

from lightning_gaudi._core import vendor

_VENDORS: dict[str, Callable[[], type[Optimizer]]] = {
    "fusedadamw": vendor.fused_adamw,
    "fusedlamb": vendor.fused_lamb,
}
"""The vendor's optimizers, by their names in lower case."""


def take_vendors(
    config: dict[str, Any], optimizer: Optimizer | None, parameters: Sequence[Parameter]
) -> tuple[dict[str, Any], Optimizer | None]:
    """Makes an optimizer of the vendor's that the settings name and DeepSpeed does not know.

    Args:
        config: DeepSpeed's settings, such as `{"optimizer": {"type": "FusedAdamW"}}`.
        optimizer: The user's, if there is one.
        parameters: The parameters that the optimizer trains.

    Returns:
        The settings without it, and the optimizer; or both as they were passed.
    """
    section = config.get("optimizer") or {}
    make = _VENDORS.get(str(section.get("type")).lower())
    if optimizer is not None or make is None:
        return config, optimizer
    rest = {name: value for name, value in config.items() if name != "optimizer"}
    # DeepSpeed refuses optimizers that it does not know under ZeRO, unless this is set.
    rest["zero_allow_untested_optimizer"] = True
    return rest, make()(list(parameters), **(section.get("params") or {}))


def check_named_optimizer(config: Mapping[str, Any]) -> None:
    """Refuses an optimizer whose settings would be ignored.

    Raises:
        ValueError: DeepSpeed's Adam for the HPU would drop the weight decay: it knows AdamW's
            alone (deepspeed 0.19.8, `ops/op_builder/hpu/fused_adam.py`).
    """
    section = config.get("optimizer") or {}
    params = section.get("params") or {}
    is_adam = str(section.get("type")).lower() == "adam" and not params.get("torch_adam")
    decay = params.get("weight_decay", 0)
    if is_adam and decay and not params.get("adam_w_mode", True) and not _is_on_cpu(config):
        raise ValueError(
            f"optimizer.params has weight_decay={decay} and adam_w_mode=False, but DeepSpeed's "
            "Adam for the HPU would drop such a weight decay. Set torch_adam to true, or "
            "adam_w_mode to true."
        )


def _is_on_cpu(config: Mapping[str, Any]) -> bool:
    zero = config.get("zero_optimization") or {}
    return bool((zero.get("offload_optimizer") or {}).get("device", "none") != "none")
