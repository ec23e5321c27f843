"""`HPUFSDPStrategy`, which shards models larger than a card (FSDP)."""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric.strategies.fsdp import FSDPStrategy
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from typing_extensions import override

from lightning_gaudi._core.precision.gradient_clipping import clip_fsdp_norm

from ...distributed import fsdp
from ...distributed.sharding import FSDPMixin
from ..precision.fsdp import HPUFSDPPrecision
from .sharded import ShardedHPUStrategy


class HPUFSDPStrategy(FSDPMixin, ShardedHPUStrategy, FSDPStrategy):
    """Trains models larger than a card in shards (FSDP): `Fabric(strategy="hpu_fsdp")`.

    `"fsdp"`, `"fsdp_cpu_offload"` and every `FSDPStrategy` instance become one on accelerator "hpu"
    and keep their arguments. It takes those of Lightning's `FSDPStrategy`.
    """

    precision_kind = HPUFSDPPrecision

    @property
    def fsdp_arguments(self) -> dict[str, Any]:
        """The arguments of FullyShardedDataParallel."""
        arguments: dict[str, Any] = self._fsdp_kwargs
        return arguments

    @override
    def setup_environment(self) -> None:
        """Chooses this rank's card, prepares it, then connects all ranks over HCCL."""
        # Lightning would make a mesh of CUDA devices of it (2.6, `FSDPStrategy.setup_environment`).
        mesh = self._fsdp_kwargs.pop("device_mesh", None)
        super().setup_environment()
        fsdp.check_fp16(self.precision.precision, self.mixed_precision)
        if mesh is not None:
            self._fsdp_kwargs["device_mesh"] = mesh
        self._make_mesh()

    @override
    def setup_module(self, module: Module) -> Module:
        """Shards the module, unless the user has done so.

        Raises:
            MisconfigurationException: The user has sharded only parts of it.
        """
        wrapped: Module = super().setup_module(module)
        fsdp.check_wrapped(wrapped)
        return wrapped

    @override
    def clip_gradients_norm(
        self,
        module: Module,
        optimizer: Optimizer,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = True,
    ) -> Tensor:
        """Clips by the norm of the optimizer's gradients over the shards of all ranks.

        Args:
            module: The module that `setup` returned.
            optimizer: The optimizer of some of its parameters.
            max_norm: The largest norm, in units of the gradients.
            norm_type: The p of the norm, which may be infinite.
            error_if_nonfinite: Whether to raise if the norm is infinite or no number, for which the
                host waits for the device.

        Returns:
            The norm before clipping, of shape ().

        Raises:
            RuntimeError: The norm is not finite.
        """
        self.precision.unscale_gradients(optimizer)
        norm = clip_fsdp_norm(module, optimizer, max_norm, norm_type)
        # Not `not torch.isfinite(norm)`: a dry card, which has no values, answers 0 to everything,
        # and must not raise here.
        if error_if_nonfinite and torch.isfinite(norm).logical_not():
            raise RuntimeError(
                f"The gradients' norm of order {norm_type} is {norm.item()}, so they cannot be "
                "clipped. Pass error_if_nonfinite=False to continue with them nevertheless."
            )
        return norm
