"""`ShardedHPUStrategy`, the base of Fabric's strategies with sharded models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.strategies.strategy import (
    _apply_filter,
    _validate_keys_for_strict_loading,
)
from lightning.fabric.utilities.load import _move_state_into
from lightning.fabric.utilities.types import _PATH, _Stateful
from torch.nn import Module
from torch.optim import Optimizer
from typing_extensions import override

from lightning_gaudi._core import progress
from lightning_gaudi._core.collectives import on_rank_zero
from lightning_gaudi.reliability.settings import as_told

from ...checkpoint.errors import damage_on_all_ranks
from ...checkpoint.files import open_mapped
from ...checkpoint.folders import recover
from ...checkpoint.stored_shards import fetched
from ...checkpoint.torch_dcp.layout import is_sharded_folder, load_rest
from ...checkpoint.torch_dcp.load import read_metadata, saved_names
from ...checkpoint.torch_dcp.save import refuse_options, save_sharded
from ...checkpoint.torch_dcp.sharded_state_dict import (
    is_sharded_model,
    load_states,
    model_state,
    optimizer_state,
)
from ...checkpoint.verify import check_folder_together
from ...distributed.sharding import ShardedMixin
from .base import HPUStrategy

_Filter = Mapping[str, Callable[[str, Any], bool]]


class ShardedHPUStrategy(ShardedMixin, HPUStrategy):
    """The base of Fabric's strategies with sharded models, which saves and loads them."""

    @override
    @progress.elsewhere("saving a checkpoint")
    def save_checkpoint(
        self,
        path: _PATH,
        state: dict[str, Any],
        storage_options: Any | None = None,
        filter: _Filter | None = None,
    ) -> None:
        """Saves a folder of shards, or a single file; until it is complete, the old one stays.

        Args:
            path: A local path, or an address that fsspec knows.
            state: One sharded model, its optimizers, and any other objects, by name.
            storage_options: Not supported.
            filter: Functions by names in `state`, which choose the items to save.

        Raises:
            TypeError: `storage_options` are given.
            ValueError: There is not exactly one sharded model.
            IsADirectoryError: `path` is a folder with something else in it.
            OSError: The checkpoint cannot be written.
        """
        refuse_options(storage_options)
        self.guard.save(state)
        path = self.broadcast(path)
        key, model = _only_model(state)
        full, filters = not self.saves_shards, dict(filter or {})
        shards: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        for name, value in state.items():
            if name == key:
                _apply_filter(name, filters, model_state(model, full=full), shards)
            elif isinstance(value, Optimizer):
                found = optimizer_state(model, value, full=full)
                _apply_filter(name, filters, found, shards)
            else:
                found = value.state_dict() if isinstance(value, _Stateful) else value
                _apply_filter(name, filters, found, rest)
        if self.saves_shards:
            save_sharded(path, shards, rest, with_manifest=self.reliability.verify_checkpoints)
        elif self.is_global_zero:
            self.checkpoint_io.save_checkpoint(shards | rest, path)

    @override
    @as_told
    def load_checkpoint(
        self,
        path: _PATH,
        state: Module | Optimizer | dict[str, Any] | None = None,
        strict: bool = True,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Loads a sharded model and other objects from any kind of checkpoint.

        Args:
            path: A folder of shards or a single file, saved by any strategy.
            state: The objects to load into, by name: one sharded model, its optimizers, and any
                others. Or a model alone, for a folder, or a file that is a state dict.
            strict: Whether the checkpoint must have all names in `state`, and those of the model.
            weights_only: See `HPUCheckpointIO.load_checkpoint`.

        Returns:
            The rest of the checkpoint.

        Raises:
            FileNotFoundError: There is no checkpoint.
            KeyError: A name in `state` is not in the checkpoint.
            NotImplementedError: `state` is an optimizer alone.
            ValueError: There is not exactly one sharded model; or a file is missing, truncated, or
                not of this model or optimizer.
        """
        if isinstance(state, Optimizer):
            raise NotImplementedError(
                "An optimizer in shards is loaded together with its model: pass "
                "state={'model': ..., 'optimizer': ...}."
            )
        with fetched(self.broadcast(path)) as found:
            return self._load(found, state, strict=strict, weights_only=weights_only)

    def _load(
        self,
        path: _PATH,
        state: Module | dict[str, Any] | None,
        *,
        strict: bool,
        weights_only: bool | None,
    ) -> dict[str, Any]:
        """Loads a local folder or file, or a file at an address; see `load_checkpoint`."""
        folder = Path(path)
        # A save that was killed between its two renames has left the old checkpoint under another
        # name.
        on_rank_zero(lambda: recover(folder))
        verify = self.reliability.verify_checkpoints
        if is_sharded_folder(folder):
            check_folder_together(folder, with_checksum=verify)

        @damage_on_all_ranks()
        def read(path: _PATH) -> dict[str, Any]:
            # All ranks of a machine map the same file: one compares its checksum for all of them.
            is_first = verify and self.local_rank == 0
            return open_mapped(path, weights_only=weights_only, verify=is_first)

        if isinstance(state, Module):
            _load_model(path, state, read, strict=strict)
            return {}
        key, model = _only_model(state or {})
        assert state is not None
        optimizers = {name: value for name, value in state.items() if isinstance(value, Optimizer)}
        source: Path | dict[str, Any]
        if is_sharded_folder(folder):
            source, rest = folder, load_rest(folder, weights_only=weights_only)
        else:
            rest = read(path)
            source = {name: rest.pop(name) for name in (key, *optimizers) if name in rest}
        others = state.keys() - {key, *optimizers}
        _validate_keys_for_strict_loading(others, rest.keys(), strict=strict)
        load_states(source, key, model, optimizers, strict=strict)
        _move_state_into(source=rest, destination=state, keys=others)
        return rest


def _load_model(path: _PATH, model: Module, read: Callable[[_PATH], Any], *, strict: bool) -> None:
    folder = Path(path)
    if is_sharded_folder(folder):
        (key, *_), _ = saved_names(read_metadata(folder))
        load_states(folder, key, model, {}, strict=strict)
        return
    load_states({"model": read(path)}, "model", model, {}, strict=strict)


def _only_model(state: Mapping[str, Any]) -> tuple[str, Module]:
    """Returns the only sharded model, and its name."""
    models = [(name, value) for name, value in state.items() if is_sharded_model(value)]
    if len(models) != 1:
        found = ", ".join(repr(name) for name, _ in models) or "none"
        raise ValueError(
            "A checkpoint of a sharded model needs exactly one, as Fabric.setup returned it, as in "
            f"state={{'model': model, ...}}; found {found} in {[*state]}. Pass one, and save each "
            "to a path of its own."
        )
    return models[0]
