"""Names in checkpoints that lead elsewhere, and parts that do not make a whole."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata

from lightning_gaudi.checkpoint.errors import DamagedCheckpointError
from lightning_gaudi.checkpoint.manifest import FOLDER_MANIFEST
from lightning_gaudi.checkpoint.single_file import write_single_file
from lightning_gaudi.checkpoint.torch_dcp.load import load_full_checkpoint, load_full_state
from lightning_gaudi.checkpoint.torch_dcp.save import save_sharded
from lightning_gaudi.deepspeed.checkpoint import resize, shards, versions
from lightning_gaudi.inference.checkpoint_files import read_headers, read_tensor

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of shards without a manifest."""
    state = {"weight": torch.arange(64.0).reshape(8, 8), "bias": torch.ones(8)}
    path = tmp_path / "x.ckpt"
    save_sharded(path, {"model": state}, {"epoch": 1})
    (path / FOLDER_MANIFEST).unlink(missing_ok=True)
    assert torch.equal(load_full_state(path)["weight"], state["weight"])
    return path


def _chunks(*boxes: tuple[tuple[int, ...], tuple[int, ...]]) -> Callable[[Metadata], None]:
    """Gives a tensor other chunks; each of them is where the only one was."""

    def change(metadata: Metadata) -> None:
        stored: Any = metadata.state_dict_metadata["model.weight"]
        stored.chunks[:] = [
            ChunkStorageMetadata(torch.Size(offset), torch.Size(size)) for offset, size in boxes
        ]
        index = next(each for each in metadata.storage_data if each.fqn == "model.weight")
        info = metadata.storage_data.pop(index)
        for number, (offset, _) in enumerate(boxes):
            place = replace(info, offset=info.offset + number, length=info.length - len(boxes))
            metadata.storage_data[type(index)("model.weight", torch.Size(offset), number)] = place

    return change


def _size(*size: int) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        stored: Any = metadata.state_dict_metadata["model.weight"]
        stored.size = torch.Size(size)

    return change


def _dtype(metadata: Metadata) -> None:
    stored: Any = metadata.state_dict_metadata["model.weight"]
    stored.properties.dtype = torch.int32


def _shape_of_chunk(metadata: Metadata) -> None:
    stored: Any = metadata.state_dict_metadata["model.weight"]
    stored.size, stored.chunks[0].sizes = torch.Size([64, 1]), torch.Size([64, 1])


def _path(name: str) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        for index, info in [*metadata.storage_data.items()]:
            metadata.storage_data[index] = replace(info, relative_path=name)

    return change


def _list(metadata: Metadata) -> None:
    metadata.planner_data["model.bias"] = ("model", 10**9)


FORGED: dict[str, Callable[[Metadata], None]] = {
    "no chunks": _chunks(),
    "a missing row": _chunks(((0, 0), (7, 8))),
    "overlapping chunks": _chunks(((0, 0), (8, 4)), ((0, 2), (8, 4))),
    "a chunk twice": _chunks(((0, 0), (4, 8)), ((0, 1), (4, 7)), ((4, 7), (4, 1))),
    "a chunk outside": _chunks(((4, 0), (8, 8))),
    "a chunk with fewer axes": _chunks(((0,), (64,))),
    "a size of terabytes": _size(10**6, 10**6),
    "a larger size": _size(8, 9),
    "a size of another kind": lambda metadata: _size(8, 8)(metadata) or _size(-8, -8)(metadata),
    "another dtype": _dtype,
    "another shape": _shape_of_chunk,
    "a place far in a list": _list,
    "a file of another folder": _path("../other/__0_0.distcp"),
    "an absolute file": _path("/etc/hostname"),
    "a link": _path("link"),
    "no values": lambda metadata: setattr(metadata, "state_dict_metadata", 5),
    "no places": lambda metadata: setattr(metadata, "storage_data", None),
}


@pytest.mark.parametrize("name", FORGED)
def test_metadata_that_lie_are_refused(name: str, folder: Path) -> None:
    other = folder.parent / "other"
    other.mkdir()
    (shard,) = folder.glob("*.distcp")
    (other / "__0_0.distcp").write_bytes(shard.read_bytes())
    (folder / "link").symlink_to(other / "__0_0.distcp")
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    FORGED[name](metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    for load in (load_full_state, load_full_checkpoint):
        with pytest.raises(DamagedCheckpointError):
            load(folder)


@pytest.mark.parametrize("name", [".metadata", "meta.pt"])
def test_a_part_that_is_a_link_to_another_folder_is_refused(name: str, folder: Path) -> None:
    (folder / name).rename(folder.parent / "elsewhere")
    (folder / name).symlink_to(folder.parent / "elsewhere")
    with pytest.raises(DamagedCheckpointError, match="is not a file within"):
        load_full_checkpoint(folder)


@pytest.mark.parametrize("tag", ["../other", "/tmp", "checkpoint/../../other", "\xff", "x" * 300])
def test_latest_names_a_version_of_the_folder(tag: str, tmp_path: Path) -> None:
    for name in ("x.ckpt", "other"):
        (tmp_path / name / "checkpoint").mkdir(parents=True)
        torch.save({"dp_world_size": 1}, tmp_path / name / "checkpoint/mp_rank_00_model_states.pt")
    (tmp_path / "x.ckpt/latest").write_bytes(tag.encode("latin1"))
    with pytest.raises(DamagedCheckpointError, match="its file 'latest' names no version"):
        versions.latest(tmp_path / "x.ckpt")


@pytest.mark.parametrize("count", [10**9, -1, 0, True, "2", None, [1], 2.0])
def test_a_number_of_ranks_is_one(count: Any, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "latest").write_text("checkpoint")
    state = {"dp_world_size": count, "param_shapes": [{}]}
    torch.save(state, tmp_path / "checkpoint/mp_rank_00_model_states.pt")
    with pytest.raises(DamagedCheckpointError, match=r"says that .* ranks have saved it"):
        shards.find(tmp_path)


def test_deepspeeds_files_are_no_links_to_other_folders(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "latest").write_text("checkpoint")
    torch.save({"dp_world_size": 1}, tmp_path / "checkpoint/mp_rank_00_model_states.pt")
    outside = tmp_path.parent / f"{tmp_path.name}-outside.pt"
    torch.save({}, outside)
    (tmp_path / "checkpoint/zero_pp_rank_9_mp_rank_00_optim_states.pt").symlink_to(outside)
    with pytest.raises(DamagedCheckpointError, match="is not a file within"):
        shards.find(tmp_path)


@pytest.mark.parametrize("name", ["../../../escaped", "/tmp/escaped", "..", "a\0b", ""])
def test_names_of_parameters_lead_to_no_other_folder(name: str, tmp_path: Path) -> None:
    """DeepSpeed makes a folder of each as it divides a checkpoint anew."""
    model, optimizer = tmp_path / "model.pt", tmp_path / "optimizer.pt"
    torch.save({"param_shapes": [{name: torch.Size([1])}], "module": {}}, model)
    state = {"state": {0: {"exp_avg": torch.ones(1), "exp_avg_sq": torch.ones(1)}}}
    torch.save({"optimizer_state_dict": {"base_optimizer_state": state}}, optimizer)
    found = shards.Shards(tmp_path, "", 2, (model,), (optimizer,))
    with pytest.raises(DamagedCheckpointError, match="is no name of a file"):
        resize.check_resizable(found, 1)


def _model(folder: Path, index: Any = None) -> Path:
    folder.mkdir(parents=True)
    save_file({"weight": torch.ones(2)}, folder / "a.safetensors")
    text = json.dumps({"weight_map": {"weight": "a.safetensors"}} if index is None else index)
    (folder / INDEX).write_text(text)
    return folder


@pytest.mark.parametrize(
    "index",
    [
        1,
        [],
        {},
        {"weight_map": []},
        {"weight_map": 1},
        {"weight_map": {"weight": 1}},
        {"weight_map": {"weight": ["a.safetensors"]}},
        {"weight_map": {"weight": ""}},
        {"weight_map": {"weight": "."}},
        {"weight_map": {"weight": "../other/a.safetensors"}},
        {"weight_map": {"weight": "/etc/hostname"}},
        {"weight_map": {"weight": "x" * 300}},
        {"weight_map": {"weight": "link.safetensors"}},
        {"weight_map": {"weight": "a\0"}},
        {"weight_map": {"weight": "\x1b[2J"}},
    ],
)
def test_an_index_names_files_of_its_folder(index: Any, tmp_path: Path) -> None:
    other = _model(tmp_path / "other")
    folder = _model(tmp_path / "model", index)
    (folder / "link.safetensors").symlink_to(other / "a.safetensors")
    with pytest.raises(ValueError, match=r"Get the files of the model again|get it again") as error:
        read_headers(folder)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("text", [b"[" * 10**5, b"\xff", b'{"weight_map": NaN}', b""])
def test_an_index_that_is_no_json_is_said_to_be_none(text: bytes, tmp_path: Path) -> None:
    (_model(tmp_path / "model") / INDEX).write_bytes(text)
    with pytest.raises(ValueError, match="is no index of safetensors files"):
        read_headers(tmp_path / "model")


def test_hugging_faces_cache_is_loaded_and_no_other_links(tmp_path: Path) -> None:
    source = _model(tmp_path / "source")
    cache = tmp_path / "models--a--b"
    snapshot = cache / "snapshots" / ("0" * 40)
    for place in (cache / "blobs", snapshot, tmp_path / "models--c--d/blobs"):
        place.mkdir(parents=True)
    for name, digest in (("a.safetensors", "a" * 64), (INDEX, "b" * 40)):
        (cache / "blobs" / digest).write_bytes((source / name).read_bytes())
        (snapshot / name).symlink_to(f"../../blobs/{digest}")
    found = read_headers(snapshot)
    assert torch.equal(read_tensor(found["weight"]), torch.ones(2))
    foreign = tmp_path / "models--c--d/blobs" / ("a" * 64)
    foreign.write_bytes((source / "a.safetensors").read_bytes())
    (snapshot / "a.safetensors").unlink()
    (snapshot / "a.safetensors").symlink_to(f"../../../models--c--d/blobs/{'a' * 64}")
    with pytest.raises(ValueError, match="is not one of the model's files"):
        read_headers(snapshot)


def test_weights_that_repeat_a_value_are_not_written_out(tmp_path: Path) -> None:
    repeated = torch.ones(1).expand(10**12)
    with pytest.raises(DamagedCheckpointError, match="repeat 4 bytes to 4,000,000,000,000"):
        write_single_file({"w": {"a": repeated}}, "w", tmp_path / "x.safetensors")
    tied = torch.ones(100)
    write_single_file({"w": {"a": tied, "b": tied}}, "w", tmp_path / "x.safetensors")
    with pytest.raises(DamagedCheckpointError, match="has no weights"):
        write_single_file({"w": {"a": 1}}, "w", tmp_path / "x.safetensors")
