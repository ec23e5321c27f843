"""Has `HPUDeepSpeedPrecision`, Fabric's plugin for the precisions of DeepSpeed."""

from __future__ import annotations

from typing import Any

from lightning.fabric.plugins.precision import Precision
from lightning.fabric.plugins.precision.deepspeed import DeepSpeedPrecision
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_gaudi._core import vendor


class HPUDeepSpeedPrecision(DeepSpeedPrecision):
    """Sets how DeepSpeed holds and computes numbers on an HPU: `Fabric(precision=...)`.

    - `"32-true"`: all in fp32.
    - `"bf16-mixed"`, `"bf16-true"`: weights in bf16, and an fp32 copy of them that is trained.
    - `"16-mixed"`, `"16-true"`: the same in fp16 with scaled losses, where the card computes in it.

    The outputs of the module are in fp32.
    """

    def validate_for_hpu(self) -> None:
        """Checks what the user passed, before it is used on an HPU."""


def check_precision(plugin: Precision, kind: type[Any] = DeepSpeedPrecision) -> None:
    """Refuses a precision that DeepSpeed cannot compute in on this card; acquires the card.

    Args:
        plugin: The precision plugin of the strategy.
        kind: The class that the plugin should have, which is Fabric's or the Trainer's.

    Raises:
        MisconfigurationException: The plugin would bypass DeepSpeed, or the card knows no fp16.
    """
    if not isinstance(plugin, kind):
        raise MisconfigurationException(
            f"plugins={type(plugin).__name__}() would compute gradients without DeepSpeed. Leave "
            "it out, or pass HPUDeepSpeedPrecision()."
        )
    precision: str = plugin.precision
    if precision.startswith("16") and not vendor.is_fp16_supported():
        raise MisconfigurationException(
            f"precision={precision!r} is not supported by this card, a {vendor.device_name()}. "
            f"Pass precision='bf16-{precision.partition('-')[2]}'."
        )
