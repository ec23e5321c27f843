"""The files that a version of a checkpoint consists of, looked at before any of it is loaded.

ZeRO-3 has a file of the model's state for each rank, the other stages have one. With any stage but
0 each rank has a file of its optimizer, which holds its shard of the weights in fp32.
"""

from __future__ import annotations

import copy
import os
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lightning_gaudi._patches.apply import replaced

from ...checkpoint import restricted
from ...checkpoint.manifest import DamagedCheckpointError, IncompleteCheckpointError
from . import versions

_MODEL = "mp_rank_00_model_states.pt"
_OPTIMIZER = "mp_rank_00_optim_states.pt"
_RANK = re.compile(r"(?P<prefix>(?:bf16_)?zero_pp_rank_)(?P<rank>\d+)_(?P<kind>mp_rank_00_.*\.pt)")
_OTHER_PARALLELISM = re.compile(r"layer_.*|.*mp_rank_(?!00).*|expp_rank_.*")


class Shards(NamedTuple):
    """A version of a checkpoint, all of whose files are there."""

    folder: Path
    """The checkpoint."""
    tag: str
    """The version."""
    num_ranks: int
    """How many processes saved it."""
    model_files: tuple[Path, ...]
    """The model's state; of each rank if the parameters too are in shards."""
    optimizer_files: tuple[Path, ...]
    """Of each rank; none if nothing is in shards."""

    def of_rank(self, rank: int) -> tuple[Path, ...]:
        """What a rank reads that goes on where as many as now saved it."""
        model = self.model_files[rank if self.is_stage_3 else 0]
        return (model, *self.optimizer_files[rank : rank + 1])

    @property
    def is_stage_3(self) -> bool:
        """Whether the parameters too are in shards."""
        return self.model_files[0].name != _MODEL

    @property
    def is_bf16(self) -> bool:
        """Whether it was trained in bf16; not known of what is in no shards."""
        return bool(self.optimizer_files) and self.optimizer_files[0].name.startswith("bf16_")


def find(folder: Path) -> Shards:
    """The files of the latest version of a checkpoint, all of them there and whole.

    Args:
        folder: What a strategy of DeepSpeed's has saved.

    Raises:
        FileNotFoundError: A file is missing, or there is no checkpoint; names all that are.
        ValueError: A file is cut short, or belongs to a kind of parallelism that Lightning has not.
    """
    tag = versions.latest(folder)
    names = {each.name for each in (folder / tag).iterdir() if each.suffix == ".pt"}
    for name in sorted(names):
        if _OTHER_PARALLELISM.fullmatch(name):
            raise ValueError(
                f"The checkpoint {folder} has {tag}/{name}, which belongs to a model in parts of "
                "its own (tensor, pipeline or expert parallel). Load it with DeepSpeed itself."
            )
    broken = [name for name in sorted(names) if not _is_whole(folder / tag / name)]
    num_ranks, is_sharded = _saved_by(folder / tag, sorted(names - {*broken}))
    model, optimizer = _expected(names, num_ranks, is_sharded)
    _check(folder, tag, [name for name in (*model, *optimizer) if name not in names], broken)
    files = [tuple(folder / tag / name for name in kind) for kind in (model, optimizer)]
    return Shards(folder, tag, num_ranks, *files)


def load(path: Path) -> dict[str, Any]:
    """What a file holds; its tensors stay on disk until they are used."""
    state: dict[str, Any] = restricted.load(path, mmap=zipfile.is_zipfile(path))
    return state


@contextmanager
def read_by_deepspeed(states: Mapping[Path, Any] | None = None) -> Iterator[None]:
    """Have DeepSpeed, which trusts all files, run nothing that they hold.

    Args:
        states: What some of them hold, which is not read again, however often DeepSpeed asks.
    """
    load = restricted.instead_of(torch.load)

    def load_or_give(f: Any, *args: Any, **options: Any) -> Any:
        is_path = isinstance(f, (str, os.PathLike))
        if states and is_path and Path(f) in states:
            return copy.copy(states[Path(f)])
        return load(f, *args, **options)

    with replaced("deepspeed-loading", torch, load=load_or_give):
        yield


def _is_whole(path: Path) -> bool:
    """Whether a file has its end: that of a zip file lists what is in it."""
    if zipfile.is_zipfile(path):
        return True
    # DeepSpeed can be told to write pickles instead. Of those only the start is looked at.
    with path.open("rb") as file:
        return file.read(1) == pickle.PROTO


def _saved_by(version: Path, names: list[str]) -> tuple[int, bool]:
    """How many ranks saved it and whether in shards, as a file says that is whole."""
    for name in names:
        if name.endswith(_MODEL):
            state = load(version / name)
            return int(state["dp_world_size"]), state.get("param_shapes") is not None
    for name in names:
        if name.endswith(_OPTIMIZER):
            count = load(version / name)["optimizer_state_dict"]["partition_count"]
            return int(max(count) if isinstance(count, list) else count), True
    return 1, False


def _expected(names: set[str], num_ranks: int, is_sharded: bool) -> tuple[list[str], list[str]]:
    """The files of the model and of the optimizers that must be there, given some that are."""
    prefixes = {found["kind"]: found["prefix"] for found in map(_RANK.fullmatch, names) if found}
    model, optimizer = [_MODEL], []
    if _MODEL in prefixes:
        model = [f"{prefixes[_MODEL]}{rank}_{_MODEL}" for rank in range(num_ranks)]
    if is_sharded or prefixes:
        prefix = prefixes.get(_OPTIMIZER, "zero_pp_rank_")
        optimizer = [f"{prefix}{rank}_{_OPTIMIZER}" for rank in range(num_ranks)]
    return model, optimizer


def _check(folder: Path, tag: str, missing: list[str], broken: list[str]) -> None:
    """Raise if there are any."""
    if not missing and not broken:
        return
    faults = [f"lacks {_listed(tag, missing)}"] if missing else []
    faults += [f"has only a part of {_listed(tag, broken)}"] if broken else []
    raise (IncompleteCheckpointError if missing else DamagedCheckpointError)(
        f"The checkpoint {folder} is damaged: it {' and '.join(faults)}. Copy it again from where "
        "it was saved, or pass another checkpoint. Nothing was loaded."
    )


def _listed(tag: str, names: list[str]) -> str:
    shown = ", ".join(f"{tag}/{name}" for name in names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown
