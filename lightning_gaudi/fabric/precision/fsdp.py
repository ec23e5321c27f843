"""Has `HPUFSDPPrecision`, Fabric's plugin for the precisions of FSDP."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from lightning.fabric.plugins import Precision
from lightning.fabric.plugins.precision.fsdp import FSDPPrecision
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from typing_extensions import override

from lightning_gaudi._core.precision.autocast_ops import check_op_lists
from lightning_gaudi._core.precision.grad_scaler import CardScaler
from lightning_gaudi._patches.apply import swap_class

from .plugin import SHORT, check_device, check_scaler, unsupported

_DTYPES = {
    "32-true": torch.float32,
    "bf16-mixed": torch.bfloat16,
    "bf16-true": torch.bfloat16,
    "16-mixed": torch.float16,
    "16-true": torch.float16,
}


class HPUShardedGradScaler(CardScaler, ShardedGradScaler):
    """Scales the losses of a model in FSDP's shards on HPUs."""

    spans_ranks = True
    takes_float16 = True

    def __init__(self, device: str = "hpu", **settings: Any) -> None:
        """Creates a scaler; see torch's `ShardedGradScaler`."""
        super().__init__(device, **settings)


class HPUShardedPrecision(Precision):
    """Sets how FSDP holds and computes numbers on an HPU, in the Trainer and in Fabric.

    - `"32-true"`: all in fp32.
    - `"bf16-mixed"`: as with other strategies: weights, buffers and optimizer in fp32, operations
      in the dtype that the vendor's autocast lists say. Gradients travel in bf16.
    - `"bf16-true"`: all in bf16; no fp32 copy of the weights is kept.
    - `"16-mixed"`, `"16-true"`: the same in fp16, where the card can; `"16-mixed"` scales the loss.

    Lightning 2.6 gathers the weights of `"bf16-mixed"` in bf16, 2.5 in fp32. In bf16, operations
    that autocast keeps in fp32 get rounded weights and inputs, and regressions rounded targets.
    Whoever wants the smaller messages all the same passes the strategy `mixed_precision`.
    """

    # Set by the FSDPPrecision of Lightning's that each of ours extends.
    precision: Any
    scaler: ShardedGradScaler | None
    _desired_input_dtype: torch.dtype

    def __init__(
        self,
        precision: str = "32-true",
        scaler: ShardedGradScaler | None = None,
        *,
        device: str = "hpu",
    ) -> None:
        """Chooses the precision.

        Args:
            precision: One of the above; `"32"` is short for `"32-true"`, `"bf16"` for
                `"bf16-mixed"`, `"16"` for `"16-mixed"`.
            scaler: Scales the loss of `"16-mixed"`; one for the HPU by default.
            device: `"hpu"`, as lightning-habana's plugins took it.

        Raises:
            MisconfigurationException: FSDP has no such precision, or it takes no scaler, or it is
                for another device.
            ValueError: A file with autocast's operations would silently not be obeyed.
        """
        check_device(self, device)
        name = SHORT.get(precision, precision)
        if name not in _DTYPES:
            raise MisconfigurationException(unsupported(f"precision={precision!r}", _DTYPES))
        check_scaler(self, name, scaler)
        # Lightning's own is not called: it makes a scaler for CUDA, and warns if there is no CUDA.
        self.precision = name
        self.scaler = scaler
        self._desired_input_dtype = _DTYPES[name] if name.endswith("true") else torch.float32
        self.validate_for_hpu()

    def validate_for_hpu(self) -> None:
        """Makes the plugin autocast and scale on the HPU, whether Lightning or the user made it.

        Raises:
            MisconfigurationException: Its scaler is not one for shards.
            ValueError: A file with autocast's operations would silently not be obeyed.
        """
        if self.precision.endswith("mixed"):
            check_op_lists()
        # Lightning's scaler is for CUDA. A scaler of the user's own is for the HPU, or disabled.
        if self.precision == "16-mixed":
            if getattr(self.scaler, "_device", "cuda") == "cuda":
                self.scaler = HPUShardedGradScaler()
            if not isinstance(self.scaler, ShardedGradScaler):
                raise MisconfigurationException(
                    f"{type(self).__name__}(scaler=...) has a {type(self.scaler).__name__}, which "
                    "does not tell other ranks of an overflow in its shards. Pass a "
                    "ShardedGradScaler('hpu', ...) of torch.distributed.fsdp.sharded_grad_scaler."
                )
            swap_class(self.scaler, ShardedGradScaler, HPUShardedGradScaler)

    @property
    def mixed_precision_config(self) -> MixedPrecision:
        """The dtypes in which FSDP gathers weights, reduces gradients and holds buffers."""
        dtype = _DTYPES[self.precision]
        if self.precision.endswith("mixed"):
            return MixedPrecision(reduce_dtype=dtype)
        return MixedPrecision(param_dtype=dtype, reduce_dtype=dtype, buffer_dtype=dtype)

    @override
    def module_init_context(self) -> AbstractContextManager[Any]:
        """Makes new weights in the precision of the shards."""
        return self.tensor_init_context()

    @override
    def forward_context(self) -> AbstractContextManager[Any]:
        """Runs the model's forward: autocast on the HPU, or the dtype of the weights by default."""
        if self.precision.endswith("mixed"):
            return torch.autocast("hpu", dtype=_DTYPES[self.precision], cache_enabled=False)
        return self.tensor_init_context()


class HPUFSDPPrecision(HPUShardedPrecision, FSDPPrecision):
    """Sets how FSDP holds and computes numbers on an HPU: `Fabric(precision=...)`."""
