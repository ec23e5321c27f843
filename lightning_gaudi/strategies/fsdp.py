"""`HPUFSDPStrategy`, which shards models larger than a card (FSDP)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.strategies import FSDPStrategy
from torch.nn import Module
from typing_extensions import override

from ..distributed import fsdp
from ..distributed.devices import select_card
from ..distributed.sharding import FSDPMixin
from ..precision.fsdp import HPUFSDPPrecision
from .sharded import ShardedHPUStrategy


class HPUFSDPStrategy(FSDPMixin, ShardedHPUStrategy, FSDPStrategy):
    """Trains models larger than a card in shards (FSDP): `Trainer(strategy="hpu_fsdp")`.

    `"fsdp"`, `"fsdp_cpu_offload"` and every `FSDPStrategy` instance become one on accelerator "hpu"
    and keep their arguments. It takes those of Lightning's `FSDPStrategy`.

    It differs from Lightning's in that gradients can be clipped by their norm, that a model may be
    evaluated or trained again in the shards in which a run leaves it, and that `HYBRID_SHARD`
    without a mesh shards over the training cards of each node.
    """

    model_key = "model"

    precision_kind = HPUFSDPPrecision

    @property
    def fsdp_arguments(self) -> dict[str, Any]:
        """The arguments of FullyShardedDataParallel."""
        arguments: dict[str, Any] = self.kwargs
        return arguments

    @override
    def setup_environment(self) -> None:
        """Chooses this rank's card, prepares it, then connects all ranks over HCCL."""
        assert self.accelerator is not None
        assert self.parallel_devices is not None
        # Lightning's method gives the process group a device, and makes meshes of CUDA devices
        # (2.6, `FSDPStrategy.setup_environment`).
        select_card(self.parallel_devices, self.local_rank)
        self.accelerator.setup_device(self.root_device)
        fsdp.check_fp16(self.precision_plugin.precision, self.mixed_precision)
        self.setup_distributed()
        self._make_mesh()

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        """Shards the model unless it is sharded, and lets the plugin clip its gradients."""
        plugin, was_sharded = self.precision_plugin, fsdp.was_sharded(self.model)
        if isinstance(plugin, HPUFSDPPrecision):
            plugin.is_sharded = was_sharded
        with self._keeping_batch_norms(was_sharded):
            super().setup(trainer)
        if isinstance(plugin, HPUFSDPPrecision):
            plugin.model = self.model

    @override
    def _setup_model(self, model: Module) -> Module:
        settings = {
            "precision": self.precision_plugin.precision,
            "mixed_precision": self.mixed_precision,
            "cpu_offload": self.cpu_offload,
            "sharding_strategy": self.sharding_strategy,
        }
        # FullyShardedDataParallel cannot wrap a module twice. A model that an earlier run has
        # sharded keeps its root.
        root = fsdp.earlier_root(model, settings)
        if root is None:
            root = super()._setup_model(model)
            if root is not model:
                fsdp.keep_root(model, root, settings)
        fsdp.check_wrapped(root)
        module = self.lightning_module
        if module is not None and root is not model and module.trainer.training:
            fsdp.check_optimization(module.automatic_optimization)
        return root

    @override
    def teardown(self) -> None:
        """Leaves the model in its shards, with its synchronized batch norms."""
        with self._keeping_batch_norms(True):
            super().teardown()

    @contextmanager
    def _keeping_batch_norms(self, is_kept: bool) -> Iterator[None]:
        """Keeps Lightning from replacing batch norms whose weights are sharded by then."""
        exchange = self._layer_sync
        if is_kept:
            self._layer_sync = None
        try:
            yield
        finally:
            self._layer_sync = exchange
