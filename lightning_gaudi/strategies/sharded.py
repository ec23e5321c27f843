"""`ShardedHPUStrategy`, the base of strategies with sharded models, which saves and loads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.types import _PATH
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.trainer.states import TrainerFn
from torch.optim import Optimizer
from typing_extensions import override

from lightning_gaudi._core import progress
from lightning_gaudi._core.collectives import on_rank_zero
from lightning_gaudi.reliability.settings import as_told

from ..checkpoint.errors import damage_on_all_ranks
from ..checkpoint.files import open_mapped
from ..checkpoint.folders import recover
from ..checkpoint.snapshot import HostMemory, keep
from ..checkpoint.stored_shards import fetched
from ..checkpoint.torch_dcp import sharded_state_dict
from ..checkpoint.torch_dcp.layout import is_sharded_folder, load_rest
from ..checkpoint.torch_dcp.load import read_metadata, saved_names
from ..checkpoint.torch_dcp.save import refuse_options, save_sharded
from ..checkpoint.verify import check_folder_together
from ..distributed.sharding import ShardedMixin
from .base import HPUStrategy


class ShardedHPUStrategy(ShardedMixin, HPUStrategy):
    """The base of the Trainer's strategies with sharded models."""

    has_whole_gradients = False

    model_key: str
    """The name of the model in a folder of shards; Lightning has one for each strategy."""

    @property
    @override
    def writes_together(self) -> bool:  # type: ignore[override]
        """Whether a checkpoint is a folder of shards."""
        return self.saves_shards

    @override
    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Returns this rank's shards of the model, or the whole on rank 0; see `saves_shards`."""
        assert self.model is not None
        return sharded_state_dict.model_state(
            # With asynchronous saving the snapshot copies the shards to pinned memory; moved to the
            # CPU here, they would be copied twice.
            self.model,
            full=not self.saves_shards,
            offload=not self.saving.is_background,
        )

    @override
    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Returns this rank's shards of an optimizer, or the whole on rank 0 as torch has it."""
        assert self.model is not None
        if isinstance(optimizer, LightningOptimizer):
            optimizer = optimizer.optimizer
        state = sharded_state_dict.optimizer_state(
            self.model,
            optimizer,
            full=not self.saves_shards,
            offload=not self.saving.is_background,
        )
        return state if self.saves_shards else sharded_state_dict.numbered(state)

    @override
    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Does nothing: `load_checkpoint` has loaded it."""

    @override
    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Does nothing: `load_checkpoint` has loaded it."""

    @override
    @progress.elsewhere("saving a checkpoint")
    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: _PATH, storage_options: Any | None = None
    ) -> None:
        """Saves a folder of shards, or a single file; until it is complete, the old one stays.

        Args:
            checkpoint: What the Trainer has gathered.
            filepath: A local path, or an address that fsspec knows.
            storage_options: Not supported.

        Raises:
            TypeError: `storage_options` are given.
            IsADirectoryError: `filepath` is a folder with something else in it.
            OSError: It cannot be written.
        """
        refuse_options(storage_options)
        self.guard.save(checkpoint)
        path = self.broadcast(filepath)
        if self.saves_shards:
            optimizers = checkpoint.pop("optimizer_states", [])
            shards = {self.model_key: checkpoint.pop("state_dict")}
            shards |= {_name(number): state for number, state in enumerate(optimizers)}
            verify = self.reliability.verify_checkpoints

            def prepare(memory: HostMemory | None) -> Callable[[], None]:
                states = keep((shards, checkpoint), memory)
                return lambda: save_sharded(path, *states(), with_manifest=verify)

            self.saving.write(prepare)
        elif self.is_global_zero:
            self.checkpoint_io.save_checkpoint(checkpoint, path)

    @override
    @as_told
    def load_checkpoint(
        self, checkpoint_path: _PATH, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Loads the model, and the optimizers where fitting resumes, from any kind of checkpoint.

        Args:
            checkpoint_path: A folder of shards or a single file, from whichever strategy.
            weights_only: See `HPUCheckpointIO.load_checkpoint`.

        Returns:
            What else the checkpoint has.

        Raises:
            FileNotFoundError: There is nothing.
            ValueError: A file is missing or truncated, or does not fit the model or an optimizer.
        """
        with fetched(self.broadcast(checkpoint_path)) as path:
            checkpoint = self._load(path, weights_only)
        if self._is_fitting:
            self.guard.load(checkpoint)
        return checkpoint

    def _load(self, path: _PATH, weights_only: bool | None) -> dict[str, Any]:
        """Loads a local folder or file, or a file at an address; see `load_checkpoint`."""
        folder = Path(path)
        # A save that was killed between its two renames has left the checkpoint aside.
        on_rank_zero(lambda: recover(folder))
        verify = self.reliability.verify_checkpoints
        if is_sharded_folder(folder):
            check_folder_together(folder, with_checksum=verify)
            models, optimizers = saved_names(read_metadata(folder))
            checkpoint = load_rest(folder, weights_only=weights_only)
            self._load_states(folder, models[0] if models else self.model_key, optimizers)
        else:
            # All ranks of a machine map the same file: one compares it, and tells the others.
            verify = verify and self.local_rank == 0
            with damage_on_all_ranks():
                checkpoint = open_mapped(path, weights_only=weights_only, verify=verify)
            if "state_dict" not in checkpoint:
                raise ValueError(
                    f"{path} is no checkpoint of a Trainer: it has no 'state_dict'. Load it in "
                    "configure_model, or pass a Trainer's."
                )
            parts = {
                _name(number): state
                for number, state in enumerate(checkpoint.pop("optimizer_states", []))
            }
            parts["state_dict"] = checkpoint.pop("state_dict")
            self._load_states(parts, "state_dict", [*parts][:-1])
        return checkpoint

    def _load_states(self, source: Path | dict[str, Any], model_key: str, saved: list[str]) -> None:
        assert self.model is not None
        assert self.lightning_module is not None
        optimizers = self.optimizers if self._is_fitting else []
        if saved and optimizers and len(saved) != len(optimizers):
            raise ValueError(
                f"The checkpoint has the states of {len(saved)} optimizers, and this run has "
                f"{len(optimizers)}. Configure as many as when it was saved."
            )
        sharded_state_dict.load_states(
            source,
            model_key,
            self.model,
            {_name(number): optimizer for number, optimizer in enumerate(optimizers)},
            strict=self.lightning_module.strict_loading,
        )

    @property
    def _is_fitting(self) -> bool:
        assert self.lightning_module is not None
        return bool(self.lightning_module.trainer.state.fn == TrainerFn.FITTING)


def _name(number: int) -> str:
    """Returns an optimizer's name in a folder of shards, as Lightning has it."""
    return f"optimizer_{number}"
