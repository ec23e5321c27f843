"""Folders of shards that plain ranks write: whole or not at all, and looked at before loading."""

from __future__ import annotations

import os
import pickle
import resource
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from lightning_gaudi.checkpoint.errors import DamagedCheckpointError
from lightning_gaudi.checkpoint.io import HPUCheckpointIO
from lightning_gaudi.checkpoint.manifest import read_folder_manifest
from lightning_gaudi.checkpoint.torch_dcp.layout import is_sharded_folder
from lightning_gaudi.checkpoint.torch_dcp.load import (
    load_full_checkpoint,
    load_full_state,
    read_metadata,
)
from lightning_gaudi.checkpoint.torch_dcp.save import save_sharded
from tests.helpers.forked import fork_python
from tests.helpers.trainers import run_trainers

NAME = "epoch=1.ckpt"
FILES = {".metadata", "__0_0.distcp", "__1_0.distcp", "manifest.json", "meta.pt"}


def _weights(scale: float) -> dict[str, Tensor]:
    """One that no number of ranks divides, and one that has a part for rank 0 alone."""
    weight = torch.arange(21.0).reshape(7, 3) * scale
    return {"layer.weight": weight, "layer.bias": torch.ones(1) * scale}


def _states(scale: float) -> dict[str, Any]:
    """The states of a model and an optimizer, in the shards of this rank."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    shards = {
        name: distribute_tensor(value, mesh, [Shard(0)]) for name, value in _weights(scale).items()
    }
    entries = {
        name: {"step": torch.tensor(3.0), "exp_avg": value} for name, value in shards.items()
    }
    groups = [{"lr": 0.1, "betas": (0.9, 0.99), "params": [*shards]}, {"lr": 0.2, "params": []}]
    unused = {"state": {}, "param_groups": [{"lr": 0.3, "params": ["layer.bias"]}]}
    return {
        "model": shards,
        "optimizer_0": {"state": entries, "param_groups": groups},
        "optimizer_1": unused,
    }


def _rest(epoch: int) -> dict[str, Any]:
    return {"epoch": epoch, "pytorch-lightning_version": "2.6.6", "metric": torch.ones(2)}


def _connect(rank: int, folder: Path) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2
    )


def _message(path: Path, states: dict[str, Any], rest: dict[str, Any]) -> str:
    try:
        save_sharded(path, states, rest)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "saved"


def _save(rank: int, folder: Path) -> dict[str, str]:
    _connect(rank, folder)
    path = folder / "saved" / NAME
    save_sharded(path, _states(1.0), _rest(1))
    save_sharded(path, _states(2.0), _rest(2))
    messages = {"unpicklable": _message(path, _states(3.0), {"function": lambda: None})}
    if rank == 0:
        (folder / "other").mkdir()
        (folder / "other" / "notes.txt").touch()
        (folder / "file.ckpt").write_bytes(b"a full checkpoint")
    messages["folder"] = _message(folder / "other", _states(3.0), {})
    messages["file"] = _message(folder / "file.ckpt", _states(4.0), _rest(4))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
    messages["full disk"] = _message(path, _states(3.0), _rest(3))
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    return messages


def _die(rank: int, folder: Path) -> None:
    """Rank 1 is killed in the middle of writing its part."""
    _connect(rank, folder)
    path = folder / NAME
    save_sharded(path, _states(1.0), _rest(1))
    if rank == 1:

        def write_data(writer: Any, plan: Any, planner: Any) -> None:
            (writer.path / "__1_0.distcp").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)

        FileSystemWriter.write_data = write_data  # type: ignore[assignment,method-assign]
    save_sharded(path, _states(2.0), _rest(2))


def _save_again(rank: int, folder: Path) -> None:
    _connect(rank, folder / "again")
    save_sharded(folder / NAME, _states(5.0), _rest(5))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def messages(folder: Path) -> list[dict[str, str]]:
    return run_trainers(_save, folder, folder)


@pytest.fixture
def path(folder: Path, messages: list[dict[str, str]], tmp_path: Path) -> Path:
    """A copy of the folder that was saved last."""
    return Path(shutil.copytree(folder / "saved" / NAME, tmp_path / NAME))


def test_folder_is_whole_and_nothing_else_is_left(
    folder: Path, messages: list[dict[str, str]]
) -> None:
    (path,) = (folder / "saved").iterdir()
    assert {file.name for file in path.iterdir()} == FILES
    assert is_sharded_folder(path)


def test_full_checkpoint_is_what_a_trainer_would_have_saved(path: Path) -> None:
    found = load_full_checkpoint(path)
    assert found["epoch"] == 2
    first, second = found["optimizer_states"]
    for key, weight in _weights(2.0).items():
        assert torch.equal(found["state_dict"][key], weight)
        assert torch.equal(first["state"][key]["exp_avg"], weight)
        assert first["state"][key]["step"] == 3
    names = [*_weights(1.0)]
    expected = [{"lr": 0.1, "betas": (0.9, 0.99), "params": names}, {"lr": 0.2, "params": []}]
    assert first["param_groups"] == expected
    assert second == {"state": {}, "param_groups": [{"lr": 0.3, "params": ["layer.bias"]}]}
    assert found.keys() == {"state_dict", "optimizer_states", *_rest(2)}


def test_strategies_without_shards_load_a_folder(path: Path) -> None:
    found = HPUCheckpointIO().load_checkpoint(path)
    assert torch.equal(found["state_dict"]["layer.weight"], _weights(2.0)["layer.weight"])


def test_full_state_is_loaded_without_an_hpu(path: Path) -> None:
    result = fork_python(
        """
        import sys, torch
        from lightning_gaudi.checkpoint.torch_dcp.load import load_full_state
        state = load_full_state(sys.argv[1])
        assert not hasattr(torch, "hpu") and "habana_frameworks" not in sys.modules
        print({name: value.tolist() for name, value in state.items()})
        """,
        str(path),
        env={"LIGHTNING_GAUDI_SIMULATE": None, "LIGHTNING_GAUDI_AUTOLOAD": "0"},
    )
    expected = {name: value.tolist() for name, value in _weights(2.0).items()}
    assert result.stdout.strip() == str(expected)


def test_name_of_the_model_is_asked_for_where_it_is_another(path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no model 'net': it has 'model'"):
        load_full_state(path, key="net")


def test_file_is_replaced_by_a_folder(folder: Path, messages: list[dict[str, str]]) -> None:
    assert {found["file"] for found in messages} == {"saved"}
    assert load_full_checkpoint(folder / "file.ckpt")["epoch"] == 4


def test_folder_is_replaced_by_a_file(path: Path) -> None:
    HPUCheckpointIO().save_checkpoint({"epoch": 5}, path)
    assert torch.load(path) == {"epoch": 5}
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("folder", "other is a folder, and no checkpoint. Save to another path."),
        ("full disk", f"{NAME}: File too large, on rank 1."),
        ("full disk", "MiB are free there. The checkpoint that was there before is intact."),
        ("unpicklable", "lambda"),
    ],
)
def test_failure_on_one_rank_is_the_same_error_on_all(
    folder: Path, messages: list[dict[str, str]], case: str, expected: str
) -> None:
    for found in messages:
        assert expected in found[case]
    assert load_full_checkpoint(folder / "saved" / NAME)["epoch"] == 2
    assert (folder / "other" / "notes.txt").exists()


def test_killed_save_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"process [01] terminated"):
        run_trainers(_die, tmp_path, tmp_path)
    path = tmp_path / NAME
    assert load_full_checkpoint(path)["epoch"] == 1
    (tmp_path / "again").mkdir()
    run_trainers(_save_again, tmp_path, tmp_path)
    assert load_full_checkpoint(path)["epoch"] == 5
    assert not list(tmp_path.glob(".saving-*"))


@pytest.fixture(params=[True, False], ids=["with", "without"], name="has_manifest")
def _has_manifest(request: pytest.FixtureRequest, path: Path) -> bool:
    if not request.param:  # as of another program
        (path / "manifest.json").unlink()
    return bool(request.param)


PARTS = sorted(FILES - {"manifest.json"})


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.usefixtures("has_manifest")
def test_missing_file_is_named(path: Path, name: str) -> None:
    (path / name).unlink()
    for load in (load_full_checkpoint, HPUCheckpointIO().load_checkpoint):
        with pytest.raises(ValueError, match=name):
            load(path)


@pytest.mark.parametrize("name", PARTS)
def test_truncated_file_is_named(path: Path, name: str, has_manifest: bool) -> None:
    content = (path / name).read_bytes()
    (path / name).write_bytes(content[: len(content) // 2])
    match = rf"{name} is truncated: {len(content) // 2:,} bytes of {len(content):,}"
    if not has_manifest:
        match = match.replace(",", "") if name.endswith(".distcp") else f"{name} is truncated or"
    with pytest.raises(ValueError, match=match):
        load_full_checkpoint(path)


@pytest.mark.parametrize("name", sorted(FILES))
def test_flipped_bit_is_found(path: Path, name: str) -> None:
    content = bytearray((path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (path / name).write_bytes(bytes(content))
    with pytest.raises(DamagedCheckpointError, match=f"{name} (has the SHA-256|is damaged)"):
        load_full_checkpoint(path)


def test_what_is_not_to_be_compared_is_not(path: Path) -> None:
    loaded = HPUCheckpointIO().load_checkpoint(path)
    start = (path / "__0_0.distcp").read_bytes()
    value = loaded["state_dict"]["layer.weight"][0, 1].numpy().tobytes()
    (path / "__0_0.distcp").write_bytes(start.replace(value, bytes(4)))
    with pytest.raises(DamagedCheckpointError, match="__0_0"):
        HPUCheckpointIO().load_checkpoint(path)
    found = HPUCheckpointIO(verify=False).load_checkpoint(path)
    assert (
        found["state_dict"]["layer.weight"][0, 1] == 0 != loaded["state_dict"]["layer.weight"][0, 1]
    )


def test_folder_tells_what_it_is(path: Path) -> None:
    found = read_folder_manifest(path)
    assert found is not None
    assert (found.num_ranks, found.epoch, {*found.files}) == (2, 2, {*PARTS})


def test_all_missing_and_truncated_shards_are_named_at_once(path: Path) -> None:
    (path / "manifest.json").unlink()
    (path / "__0_0.distcp").unlink()
    (path / "__1_0.distcp").write_bytes(b"")
    with pytest.raises(ValueError, match=r"__0_0\.distcp is missing; __1_0\.distcp is truncated"):
        read_metadata(path)


def test_folder_of_something_else_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match="is no checkpoint in shards"):
        load_full_state(tmp_path)


def test_metadata_of_something_else_is_no_checkpoint(path: Path) -> None:
    (path / ".metadata").write_bytes(pickle.dumps(["something"]))
    with pytest.raises(ValueError, match=r"\.metadata is truncated or damaged"):
        read_metadata(path)
