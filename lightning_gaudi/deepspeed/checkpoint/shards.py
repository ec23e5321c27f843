"""Finds and checks the files of a version of a checkpoint before any of them is loaded.

ZeRO-3 has a file of the model's state for each rank; the other stages have a single one. In every
stage but 0 each rank has a file of its optimizer, with its shard of the weights in fp32.
"""

from __future__ import annotations

import copy
import os
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lightning_gaudi._core.wording import listed
from lightning_gaudi._patches.apply import replaced
from lightning_gaudi.untrusted import path_inside, printable

from ...checkpoint import restricted
from ...checkpoint.archive import DirectoryError, read_directory
from ...checkpoint.errors import (
    ADVICE,
    DamagedCheckpointError,
    ExceededError,
    IncompleteCheckpointError,
    UntrustedCheckpointError,
)
from ...checkpoint.opening import open_regular
from . import versions

_MODEL = "mp_rank_00_model_states.pt"
_OPTIMIZER = "mp_rank_00_optim_states.pt"
_RANK = re.compile(r"(?P<prefix>(?:bf16_)?zero_pp_rank_)(?P<rank>\d+)_(?P<kind>mp_rank_00_.*\.pt)")
_MAX_RANKS = 2**16
"""The most ranks that are believed, since the names of their files are listed."""

_OTHER_PARALLELISM = re.compile(r"layer_.*|.*mp_rank_(?!00).*|expp_rank_.*")


class Shards(NamedTuple):
    """A version of a checkpoint, with all of its files."""

    folder: Path
    """The checkpoint."""
    tag: str
    """The version."""
    num_ranks: int
    """How many processes saved it."""
    model_files: tuple[Path, ...]
    """The files of the model's state; one for each rank if the parameters are sharded."""
    optimizer_files: tuple[Path, ...]
    """The files of the optimizer's shards, one for each rank; none if nothing is sharded."""

    def of_rank(self, rank: int) -> tuple[Path, ...]:
        """Returns the files that a rank reads if as many ranks as now have saved them."""
        model = self.model_files[rank if self.is_stage_3 else 0]
        return (model, *self.optimizer_files[rank : rank + 1])

    @property
    def is_stage_3(self) -> bool:
        """Whether the parameters are sharded, too."""
        return self.model_files[0].name != _MODEL

    @property
    def is_bf16(self) -> bool:
        """Whether it was trained in bf16; False if nothing is sharded, where it is not known."""
        return bool(self.optimizer_files) and self.optimizer_files[0].name.startswith("bf16_")


def find(folder: Path) -> Shards:
    """Returns the files of the latest version of a checkpoint, if all are there and complete.

    Args:
        folder: A checkpoint of DeepSpeed's.

    Raises:
        FileNotFoundError: Files are missing, which are named, or there is no checkpoint.
        ValueError: A file is cut short, or belongs to a parallelism that Lightning does not have.
    """
    tag = versions.latest(folder)
    names = {each.name for each in (folder / tag).iterdir() if each.suffix == ".pt"}
    _check_inside(folder, tag, names)
    for name in sorted(names):
        if _OTHER_PARALLELISM.fullmatch(name):
            raise ValueError(
                f"The checkpoint {printable(folder)} has {printable(f'{tag}/{name}')}, which "
                "belongs to a model in parts of its own (tensor, pipeline or expert "
                "parallel). Load it with DeepSpeed itself."
            )
    broken = [name for name in sorted(names) if not _is_whole(folder / tag / name)]
    num_ranks, is_sharded = _saved_by(folder / tag, sorted(names - {*broken}))
    model, optimizer = _expected(names, num_ranks, is_sharded)
    _check(folder, tag, [name for name in (*model, *optimizer) if name not in names], broken)
    files = [tuple(folder / tag / name for name in kind) for kind in (model, optimizer)]
    return Shards(folder, tag, num_ranks, *files)


def _check_inside(folder: Path, tag: str, names: Iterable[str]) -> None:
    """Refuses files that are links out of the checkpoint, since DeepSpeed reads all of them."""
    try:
        for name in sorted(names):
            path_inside(folder, f"{tag}/{name}")
    except ValueError as error:
        raise DamagedCheckpointError(
            f"The checkpoint {printable(folder)} is damaged: {error} {ADVICE}"
        ) from None


def load(path: Path) -> dict[str, Any]:
    """Loads a file, whose tensors stay on disk until they are used.

    Raises:
        DamagedCheckpointError: It holds no state, or is damaged.
        UntrustedCheckpointError: It holds more than tensors and plain data.
    """
    state = restricted.load(path, mmap=True)
    if not isinstance(state, dict):
        raise DamagedCheckpointError(
            f"{printable(path)} is damaged: it does not hold a dict. {ADVICE}"
        )
    return state


@contextmanager
def as_damage(folder: Path) -> Iterator[None]:
    """Turns errors over a state that is not DeepSpeed's into one that says so.

    Raises:
        DamagedCheckpointError: Names the checkpoint and what went wrong.
    """
    try:
        yield
    except (DamagedCheckpointError, UntrustedCheckpointError, ImportError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DamagedCheckpointError(
            f"The checkpoint {printable(folder)} is damaged: it does not hold what DeepSpeed saves "
            f"({type(error).__name__}: {printable(error, max_chars=500)}). {ADVICE}"
        ) from error


@contextmanager
def read_by_deepspeed(states: Mapping[Path, Any] | None = None) -> Iterator[None]:
    """Keeps DeepSpeed, which trusts all files, from running what is in them.

    Args:
        states: The content of files that are not to be read again.
    """
    load = restricted.instead_of(torch.load)

    def load_or_give(f: Any, *args: Any, **options: Any) -> Any:
        is_path = isinstance(f, (str, os.PathLike))
        if states and is_path and Path(f) in states:
            # A copy, so that changes to the dict do not reach the next reader.
            return copy.copy(states[Path(f)])
        return load(f, *args, **options)

    with replaced("deepspeed-loading", torch, load=load_or_give):
        yield


def _is_whole(path: Path) -> bool:
    """Returns whether a file is complete, by the directory at the end of a zip file."""
    with open_regular(path) as file:
        start = file.read(4)
        file.seek(0)
        if start != b"PK\x03\x04":
            # DeepSpeed can be told to write pickles instead. Of those only the start is looked at.
            return start[:1] == pickle.PROTO
        try:
            read_directory(file)
        except (DirectoryError, ExceededError):
            return False
    return True


def _saved_by(version: Path, names: list[str]) -> tuple[int, bool]:
    """Returns how many ranks saved a version and whether it is sharded, from a complete file."""
    for name in names:
        if name.endswith(_MODEL):
            state = load(version / name)
            count, is_sharded = state.get("dp_world_size"), state.get("param_shapes") is not None
            return _checked_count(count, version / name), is_sharded
    for name in names:
        if name.endswith(_OPTIMIZER):
            with as_damage(version):
                count = load(version / name)["optimizer_state_dict"]["partition_count"]
                counts = count if isinstance(count, list) and count else [count]
            return max(_checked_count(each, version / name) for each in counts), True
    return 1, False


def _checked_count(count: Any, path: Path) -> int:
    """Returns a number of ranks, if it is plausible."""
    if type(count) is not int or not 0 < count <= _MAX_RANKS:
        raise DamagedCheckpointError(
            f"{printable(path)} is damaged: it says that {printable(repr(count), max_chars=100)} "
            f"ranks have saved it. {ADVICE}"
        )
    return count


def _expected(names: set[str], num_ranks: int, is_sharded: bool) -> tuple[list[str], list[str]]:
    """Returns the names of all files that must exist, given the names of some that do."""
    prefixes = {found["kind"]: found["prefix"] for found in map(_RANK.fullmatch, names) if found}
    model, optimizer = [_MODEL], []
    if _MODEL in prefixes:
        model = [f"{prefixes[_MODEL]}{rank}_{_MODEL}" for rank in range(num_ranks)]
    if is_sharded or prefixes:
        prefix = prefixes.get(_OPTIMIZER, "zero_pp_rank_")
        optimizer = [f"{prefix}{rank}_{_OPTIMIZER}" for rank in range(num_ranks)]
    return model, optimizer


def _check(folder: Path, tag: str, missing: list[str], broken: list[str]) -> None:
    """Raises if files are missing or broken."""
    if not missing and not broken:
        return
    faults = [f"lacks {_listed(tag, missing)}"] if missing else []
    faults += [f"has only a part of {_listed(tag, broken)}"] if broken else []
    raise (IncompleteCheckpointError if missing else DamagedCheckpointError)(
        f"The checkpoint {printable(folder)} is damaged: it {' and '.join(faults)}. Copy it "
        "again from where it was saved, or pass another checkpoint. Nothing was loaded."
    )


def _listed(tag: str, names: list[str]) -> str:
    return listed([printable(f"{tag}/{name}") for name in names], 5)
