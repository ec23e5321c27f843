"""`HPUFSDPStrategy`: models larger than a card, in shards (FSDP)."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.strategies import FSDPStrategy
from torch.distributed.device_mesh import init_device_mesh
from typing_extensions import override

from .. import distributed
from ..precision import HPUFSDPPrecision
from .parallel import RankedHPUStrategy


class HPUFSDPStrategy(RankedHPUStrategy, FSDPStrategy):
    """Models larger than a card, in shards (FSDP): `Trainer(strategy="hpu_fsdp")`."""

    strategy_name = "hpu_fsdp"

    precision_kind = HPUFSDPPrecision

    @override
    def setup_environment(self) -> None:
        """Choose this rank's card, prepare it, then connect all ranks over HCCL."""
        assert self.parallel_devices is not None
        assert self.accelerator is not None
        # Not Lightning's, which gives the process group a device and meshes to "cuda".
        distributed.select_card(self.parallel_devices, self.local_rank)
        self.accelerator.setup_device(self.root_device)
        self._connect()
        mesh = self.kwargs.get("device_mesh")
        if isinstance(mesh, tuple):
            self.kwargs["device_mesh"] = init_device_mesh("hpu", mesh)

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        """Put the model into shards, and have its gradients clipped there."""
        super().setup(trainer)
        plugin = self.precision_plugin
        if isinstance(plugin, HPUFSDPPrecision):
            plugin.model = self.model
