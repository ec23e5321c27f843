"""Reads whole sharded checkpoints in one process; see `layout` for the files."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor
from torch.distributed.checkpoint._nested_dict import unflatten_state_dict
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future
from typing_extensions import override

from lightning_gaudi.reliability.settings import trusting
from lightning_gaudi.untrusted import path_inside, printable

from .. import restricted
from ..errors import ADVICE, DamagedCheckpointError, UntrustedCheckpointError
from ..opening import Part, open_regular
from ..verify import check_folder
from .layout import METADATA, REST, is_sharded_folder, load_rest
from .whole import check_metadata


class Reader(FileSystemReader):
    """Reads a folder of shards, and runs nothing that it holds.

    Torch's own reader trusts `.metadata`, which is a pickle (2.6 to 2.13, `filesystem.py`).
    """

    @override
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Returns the metadata, all of which has been checked.

        Raises:
            ValueError: It is damaged, or a file is missing or truncated.
        """
        folder = Path(self.path)
        metadata = restricted.load_pickle(path_inside(folder, METADATA))
        if not isinstance(metadata, Metadata):
            raise DamagedCheckpointError(
                f"it holds {_kind(metadata)}, and not what torch's DCP saves. {ADVICE}"
            )
        check_metadata(metadata, folder)
        # `FileSystemReader.read_metadata` does the same; metadata of older releases have none.
        known = metadata.storage_meta
        storage = known if isinstance(known, StorageMeta) else StorageMeta()
        return replace(metadata, storage_meta=replace(storage, load_id=self.load_id))

    @override
    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Takes the metadata that `read_metadata` has returned on one of the ranks."""
        super().set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)
        # Kept to compare each chunk with: only the rank that read the metadata has checked them,
        # and the chunks are pickles that may hold anything.
        self._tensors = {
            (name, tuple(chunk.offsets)): (chunk.sizes, stored.properties.dtype)
            for name, stored in metadata.state_dict_metadata.items()
            if isinstance(stored, TensorStorageMetadata)
            for chunk in stored.chunks
        }

    @override
    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads the parts that a rank asks for into their tensors.

        Raises:
            DamagedCheckpointError: A value is not what the metadata say.
            UntrustedCheckpointError: A value is neither a tensor nor plain data.
        """
        files: dict[str, list[tuple[int, ReadItem]]] = {}
        for item in plan.items:
            info = self.storage_data[item.storage_index]
            files.setdefault(info.relative_path, []).append((info.offset, item))
        for name, items in files.items():
            with open_regular(path_inside(Path(self.path), name)) as file:
                for _, item in sorted(items, key=lambda each: each[0]):
                    self._read(file, item, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read(self, file: IO[bytes], item: ReadItem, planner: LoadPlanner) -> None:
        name = item.storage_index.fqn
        info = self.storage_data[item.storage_index]
        part: Any = Part(file, info.offset, info.length)
        if item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(item, BytesIO(part.read(-1)))
            return
        tensor = restricted.load(part, name=f"{name} in a file of shards", weights_only=True)
        size, dtype = self._tensors[name, tuple(item.storage_index.offset or ())]
        if not isinstance(tensor, Tensor) or (tensor.size(), tensor.dtype) != (size, dtype):
            raise DamagedCheckpointError(
                f"A chunk of {printable(name)} in the checkpoint {printable(self.path)} is not a "
                f"tensor of {tuple(size)} in {dtype}, as its {METADATA} says. {ADVICE}"
            )
        target = planner.resolve_tensor(item).detach()
        for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            tensor = tensor.narrow(dim, start, length)
        target.copy_(tensor)
        planner.commit_tensor(item, target)


def _kind(value: object) -> str:
    return printable(type(value).__name__)


class Planner(DefaultLoadPlanner):
    """Puts values into their places, and runs nothing that they hold.

    Torch's trusts all that are no tensors (2.6 to 2.13, `default_planner.py`).
    """

    @override
    def load_bytes(self, read_item: ReadItem, value: IO[bytes]) -> None:
        """Puts a value that is no tensor into its place."""
        name = read_item.dest_index.fqn
        found = restricted.load(value, map_location=None, name=f"{name} in a file of shards")
        if self.flatten_state_dict:
            set_element(self.original_state_dict, self.mappings[name], found)
        else:
            self.state_dict[name] = found


def read_metadata(folder: Path) -> Metadata:
    """Returns the metadata of a folder of shards, once each file was found to be long enough.

    Raises:
        ValueError: A file is missing or truncated; it is named.
    """
    path = folder / METADATA
    shown = printable(folder)
    if not path.is_file():
        raise DamagedCheckpointError(
            f"The checkpoint {shown} has no {METADATA}, which tells where its tensors are: it is "
            f"incomplete. {ADVICE}"
        )
    try:
        return Reader(folder).read_metadata()
    except (UntrustedCheckpointError, OSError):
        raise
    except DamagedCheckpointError as error:
        raise DamagedCheckpointError(
            f"{printable(path)} is truncated or damaged: {error}"
        ) from error
    except Exception as error:
        raise DamagedCheckpointError(
            f"The checkpoint {shown} is incomplete or damaged: {printable(error)}. {ADVICE}"
        ) from error


def load_full_state(folder: str | Path, key: str | None = None) -> dict[str, Tensor]:
    """Returns the whole weights of a sharded checkpoint, by their names in the model.

    One process reads it, however many ranks have saved it, and needs no HPU.

    Args:
        folder: A checkpoint that the Trainer or Fabric has saved.
        key: The model's, where Fabric has saved it under another name than "model".

    Returns:
        Tensors on the CPU, in the precision they were saved in.

    Raises:
        ValueError: There is no such checkpoint, a file of it is missing or truncated, or `key` is
            not there.
    """
    metadata = _opened(folder)
    models, _ = saved_names(metadata)
    key = key or next((name for name in ("state_dict", "model") if name in models), None)
    if key not in models:
        raise ValueError(
            f"The checkpoint {folder} has no model {key or 'state_dict'!r}: it has "
            f"{printable(', '.join(map(repr, models))) or 'none'}. Name one of these."
        )
    state: dict[str, Tensor] = read_values(Reader(folder), metadata, lambda path: path[0] == key)[
        key
    ]
    return state


def load_full_checkpoint(
    folder: str | Path, *, weights_only: bool | None = None, verify: bool = True
) -> dict[str, Any]:
    """Returns a sharded checkpoint as the Trainer or Fabric would have saved it in one file.

    Args:
        folder: The checkpoint.
        weights_only: See `HPUCheckpointIO.load_checkpoint`.
        verify: Whether to compare all of it with its manifest, if it has one.

    Returns:
        What `torch.load` gives of a full checkpoint: tensors on the CPU. Optimizers name their
        parameters, which torch's `load_state_dict` takes as well as numbers.

    Raises:
        ValueError: There is no such checkpoint, or a file of it is missing or truncated.
    """
    with trusting(False, weights_only) if weights_only is not None else nullcontext():
        metadata = _opened(folder, verify=verify)
        rest = load_rest(Path(folder), weights_only=weights_only)
        checkpoint = read_values(Reader(folder), metadata, lambda path: True)
    for state in checkpoint.values():
        if isinstance(state, dict) and "param_groups" in state:
            # Flattened, an empty dict has no entry that a folder could hold.
            state.setdefault("state", {})
    if "pytorch-lightning_version" in rest:
        return _as_trainers(checkpoint) | rest
    return checkpoint | rest


_OPTIMIZER = re.compile(r"optimizer_\d{1,9}")


def _as_trainers(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Returns the state with the names that the Trainer's full checkpoints have."""
    optimizers = [name for name in checkpoint if _OPTIMIZER.fullmatch(name)]
    optimizers.sort(key=lambda name: int(name.removeprefix("optimizer_")))
    states = [checkpoint.pop(name) for name in optimizers]
    if "model" in checkpoint:  # FSDP's name for it
        checkpoint["state_dict"] = checkpoint.pop("model")
    return checkpoint | ({"optimizer_states": states} if states else {})


def _opened(folder: str | Path, *, verify: bool = True) -> Metadata:
    if not is_sharded_folder(Path(folder)):
        raise ValueError(
            f"{folder} is no checkpoint in shards: it has neither {METADATA} nor {REST}. Pass the "
            "folder that the Trainer or Fabric has saved."
        )
    check_folder(Path(folder), with_checksum=verify)
    return read_metadata(Path(folder))


def saved_names(metadata: Metadata) -> tuple[list[str], list[str]]:
    """Returns the names of a checkpoint's models, and those of its optimizers."""
    below: dict[str, set[Any]] = {}
    for path in (metadata.planner_data or {}).values():
        below.setdefault(str(path[0]), set()).update(path[1:2])
    # An optimizer's state always has `param_groups`, and the names in a model's are its own.
    models = [name for name, found in below.items() if "param_groups" not in found]
    return models, [name for name in below if name not in models]


def read_values(
    reader: StorageReader, metadata: Metadata, wanted: Callable[[tuple[Any, ...]], bool]
) -> dict[str, Any]:
    """Reads parts of a checkpoint into CPU memory, in this process alone.

    Args:
        reader: Of the checkpoint.
        metadata: The checkpoint's.
        wanted: Tells by its path of keys and positions whether a value is wanted.

    Returns:
        The values in the dicts and lists that they were saved in.
    """
    planned: dict[str, tuple[Any, ...]] = metadata.planner_data or {}
    paths = {key: path for key, path in planned.items() if wanted(path)}
    values = {key: _empty(metadata.state_dict_metadata[key]) for key in paths}
    planner = Planner(flatten_state_dict=False, flatten_sharded_tensors=False)
    # The steps of torch's `load`, without the collectives, since this process is alone.
    planner.set_up_planner(values, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    (plan,) = reader.prepare_global_plan(planner.create_global_plan([plan]))
    reader.read_data(planner.finish_plan(plan), planner).wait()
    try:
        return unflatten_state_dict(values, paths)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise DamagedCheckpointError(
            f"The checkpoint's {METADATA} has values that belong to one place "
            f"({printable(error)}). {ADVICE}"
        ) from error


def _empty(stored: Any) -> Any:
    if isinstance(stored, TensorStorageMetadata):
        return torch.empty(stored.size, dtype=stored.properties.dtype)
    return None
