"""Mixins for strategies with sharded models, of the Trainer and of Fabric."""

from __future__ import annotations

from typing import Any

from torch.nn import Module
from typing_extensions import override

from lightning_gaudi.compilation.regions import is_wrapper

from . import fsdp
from .device_mesh import check_sizes
from .strategy import RankedMixin


class ShardedMixin(RankedMixin):
    """The base of strategies that shard models, or whose user does.

    A checkpoint is a folder to which each rank writes its part, or a single file, which other
    strategies can load, too. Both can be loaded with any number of cards.
    """

    has_whole_weights = False

    @override
    def takes_declared_regions(self, module: Module) -> bool:
        """Returns False: parts are sharded one by one."""
        return False

    @property
    def saves_shards(self) -> bool:
        """Whether checkpoints are folders of shards."""
        raise NotImplementedError


class FSDPMixin(ShardedMixin):
    """FSDP as torch's FullyShardedDataParallel does it, over HCCL.

    `"fsdp"`, `"fsdp_cpu_offload"` and every `FSDPStrategy` instance become one on accelerator "hpu"
    and keep their arguments.
    """

    strategy_name = "hpu_fsdp"

    @override
    def takes_declared_regions(self, module: Module) -> bool:
        """Returns whether the model is gathered as one, with no wrapper in it."""
        return not any(is_wrapper(each) for each in [*module.modules()][1:])

    @property
    def saves_shards(self) -> bool:
        """Whether the argument `state_dict_type` is "sharded"."""
        return bool(self._state_dict_type == "sharded")

    @property
    def fsdp_arguments(self) -> dict[str, Any]:
        """The arguments of FullyShardedDataParallel, which Lightning has under two names."""
        raise NotImplementedError

    def validate_for_hpu(self, typed: str) -> None:
        """Checks what the user passed: how it is sharded, and how checkpoints are saved."""
        super().validate_for_hpu(typed)
        fsdp.check_arguments(
            typed, self.fsdp_arguments, self.sharding_strategy, self._state_dict_type
        )

    def _make_mesh(self) -> None:
        """Completes the arguments, now that all ranks are connected."""
        fsdp.complete(
            self.fsdp_arguments,
            self.sharding_strategy,
            num_nodes=self.num_nodes,
            num_cards=self.num_processes,
        )


class ModelParallelMixin(ShardedMixin):
    """FSDP2, tensor parallelism, or both, as the model defines."""

    strategy_name = "hpu_model_parallel"

    mixes_weights = True

    @property
    def saves_shards(self) -> bool:
        """The argument `save_distributed_checkpoint`."""
        return bool(self._save_distributed_checkpoint)

    @override
    def _configure_launcher(self) -> None:
        check_sizes(self)
        super()._configure_launcher()
