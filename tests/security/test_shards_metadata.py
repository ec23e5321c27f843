"""What `.metadata` of a folder of shards says, where somebody else wrote it."""

from __future__ import annotations

import pickle
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex

from lightning_gaudi.checkpoint.errors import DamagedCheckpointError
from lightning_gaudi.checkpoint.torch_dcp.load import load_full_checkpoint, load_full_state
from lightning_gaudi.checkpoint.torch_dcp.save import save_sharded
from lightning_gaudi.deepspeed.checkpoint.consolidate import consolidate

# torch says that it saves and loads in one process.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

NAME = "model.weight"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of shards with one weight."""
    folder = tmp_path_factory.mktemp("shards") / "good.ckpt"
    states = {"model": {"weight": torch.arange(12.0).reshape(4, 3), "bias": torch.ones(2)}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save_sharded(folder, states, {"epoch": 1, "pytorch-lightning_version": "2.6.6"})
    return folder


def _part(metadata: Metadata) -> MetadataIndex:
    return next(index for index in metadata.storage_data if index.fqn == NAME)


def _chunks(*boxes: tuple[list[int], list[int]]) -> Callable[[Metadata, Path], None]:
    def change(metadata: Metadata, folder: Path) -> None:
        part = metadata.storage_data.pop(_part(metadata))
        stored = metadata.state_dict_metadata[NAME]
        stored.chunks = [
            ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in boxes
        ]
        for number, (offsets, _) in enumerate(boxes):
            # They share the part, as far as that goes.
            share = part.length // max(1, len(boxes))
            metadata.storage_data[MetadataIndex(NAME, torch.Size(offsets))] = replace(
                part, offset=part.offset + number * share, length=share
            )

    return change


def _file(name: str) -> Callable[[Metadata, Path], None]:
    def change(metadata: Metadata, folder: Path) -> None:
        index = _part(metadata)
        metadata.storage_data[index] = replace(metadata.storage_data[index], relative_path=name)

    return change


def _numbers(**numbers: Any) -> Callable[[Metadata, Path], None]:
    def change(metadata: Metadata, folder: Path) -> None:
        index = _part(metadata)
        metadata.storage_data[index] = replace(metadata.storage_data[index], **numbers)

    return change


def _size(*size: int) -> Callable[[Metadata, Path], None]:
    def change(metadata: Metadata, folder: Path) -> None:
        metadata.state_dict_metadata[NAME].size = torch.Size(size)

    return change


def _place(*path: Any) -> Callable[[Metadata, Path], None]:
    return lambda metadata, folder: metadata.planner_data.update({NAME: path})


def _link(metadata: Metadata, folder: Path) -> None:
    name = metadata.storage_data[_part(metadata)].relative_path
    outside = folder.parent / "outside.distcp"
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)


def _without_dtype(metadata: Metadata, folder: Path) -> None:
    metadata.state_dict_metadata[NAME].properties = None


CHANGES: dict[str, Callable[[Metadata, Path], None]] = {
    "no chunks": _chunks(),
    "a part of it in no chunk": _chunks(([0, 0], [3, 3])),
    "chunks in each other": _chunks(([0, 0], [2, 3]), ([1, 0], [2, 3])),
    "a chunk outside": _chunks(([1, 0], [4, 3])),
    "a chunk of other dims": _chunks(([0], [12])),
    "another folder": _file("../other/__0_0.distcp"),
    "an absolute name": _file("/etc/passwd"),
    "a link that leads out": _link,
    "a file that is not there": _file("__9_0.distcp"),
    "behind the end": _numbers(offset=10**9),
    "before the start": _numbers(offset=-5),
    "not a number": _numbers(length="8"),
    "a length that is true": _numbers(length=True),
    "a part that is too short": _numbers(length=4),
    "the part of another": _numbers(offset=0, length=10**4),
    "a terabyte": _size(10**6, 10**6),
    "no dtype": _without_dtype,
    "place in a long list": _place("model", 10**9),
    "place before a list": _place("model", -1),
    "no place": _place(),
    "a place that is none": _place("model", 1.5),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_what_cannot_be_believed_is_refused(kind: str, good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bad.ckpt"
    shutil.copytree(good, folder)
    (folder / "manifest.json").unlink()  # who writes the one, writes the other
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    CHANGES[kind](metadata, folder)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    for load in (load_full_checkpoint, load_full_state):
        with pytest.raises(DamagedCheckpointError, match=r"bad\.ckpt.*(damaged|incomplete)"):
            load(folder)
    with pytest.raises(DamagedCheckpointError):
        consolidate(folder, tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


def test_a_whole_one_loads(good: Path) -> None:
    assert torch.equal(load_full_state(good)["weight"], torch.arange(12.0).reshape(4, 3))
