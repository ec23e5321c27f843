"""Checkpoints in shards at an address: as on a disk, whatever is killed, damaged or copied."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import (
    DeepSpeedStrategy as FabricDeepSpeed,
    FSDPStrategy as FabricFSDP,
)
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DeepSpeedStrategy

from lightning_gaudi.checkpoint.checksum import ChecksumFile
from lightning_gaudi.checkpoint.remote import RemotePath
from lightning_gaudi.checkpoint.stored_shards import publish, remove_shards, scratch_folder
from lightning_gaudi.deepspeed.checkpoint.consolidate import consolidate
from tests.helpers.objects import address
from tests.helpers.tiny import QUIET
from tests.helpers.trainers import run_trainers
from tests.strategies.sharded_cases import Block, loader, make_net
from tests.strategies.sharded_checkpoint_cases import (
    NUM_BATCHES,
    STRATEGIES,
    model_of,
    part_of,
)

SAVED_AT, NUM_STEPS = 2, 2 * NUM_BATCHES
NAMES = [
    *("fsdp2_shards", "zero_1"),
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("fsdp_shards", "tensor_shards", "zero_3")
    ),
]
NAMES_LEFT = ("shards-1", "shards-2", "cards-0")


def _fit(name: str, path: Any, folder: str, **settings: Any) -> list[str]:
    """The losses of a fit that draws dropout and saves, in hex."""
    torch.manual_seed(7)
    kind, _, stage = name.partition("_")
    strategy = DeepSpeedStrategy(stage=int(stage)) if kind == "zero" else STRATEGIES[name](2)
    model = model_of(name, 0.3)
    options: dict[str, Any] = {"filename": "{step}", "every_n_train_steps": SAVED_AT}
    trainer = pl.Trainer(
        accelerator="hpu",
        devices=2,
        strategy=strategy,
        use_distributed_sampler=False,
        max_epochs=2,
        callbacks=[ModelCheckpoint(folder, **{**options, "save_top_k": -1, **settings})],
        **{**QUIET, "enable_checkpointing": True},
    )
    trainer.fit(model, part_of(name, trainer.global_rank, 2), ckpt_path=path)
    return [loss.item().hex() for loss in model.losses]


def _save_and_resume(rank: int, name: str, folder: Path) -> dict[str, Any]:
    tempfile.tempdir = str(folder.with_name("temporary"))
    root = address(folder)
    found: dict[str, Any] = {"losses": _fit(name, None, root)}
    found["names"] = sorted(each.name for each in folder.iterdir())
    found["versions"] = [sorted(_versions(each)) for each in sorted(folder.iterdir())]
    found["resumed"] = _fit(name, f"{root}/step={SAVED_AT}.ckpt", f"{root}-2")
    found["last"] = _fit(name, "last", root, every_n_train_steps=100)
    # The two that are kept, one of them by the same name each time.
    few = folder.with_name("few")
    _fit(name, None, address(few), save_top_k=1, save_last=True, monitor="step", mode="max")
    found["kept"] = sorted(each.name for each in few.iterdir())
    found["kept versions"] = [len(_versions(each)) for each in few.iterdir()]
    # What is copied to a disk can be loaded there.
    copied = folder.with_name("copied")
    if rank == 0:
        shutil.copytree(folder / f"step={SAVED_AT}.ckpt", copied / "x.ckpt")
    torch.distributed.barrier()
    found["copied"] = _fit(name, copied / "x.ckpt", f"{root}-3")
    if rank == 0:
        consolidate(f"{root}/step={SAVED_AT}.ckpt", folder.with_name("whole.ckpt"))
        found["whole"] = torch.load(folder.with_name("whole.ckpt"), weights_only=True)
        found["temporary"] = sorted(Path(tempfile.gettempdir()).glob("lightning-gaudi-shards-*"))
    return found


def _versions(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir() if each.is_dir()]


@pytest.mark.parametrize("name", NAMES)
def test_a_fit_goes_on_from_shards_in_a_store(name: str, tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    for found in run_trainers(_save_and_resume, tmp_path, name, tmp_path / "saved"):
        losses = found["losses"]
        assert len(losses) == NUM_STEPS
        assert found["resumed"] == found["copied"] == losses[SAVED_AT:]
        assert found["last"] == []
        assert found["names"] == [f"step={step}.ckpt" for step in range(2, NUM_STEPS + 1, 2)]
        assert all(len(versions) == 1 for versions in found["versions"])
        assert found["kept"] == ["last.ckpt", f"step={NUM_STEPS}.ckpt"]
        assert found["kept versions"] == [1, 1]
        if "whole" in found:
            assert found["whole"]["global_step"] == SAVED_AT
            assert found["temporary"] == []


def test_what_a_killed_process_has_downloaded_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, new, not_ours = (tmp_path / f"lightning-gaudi-{name}" for name in NAMES_LEFT)
    for each in (left, new, not_ours):
        each.mkdir()
        (each / "file").touch()
    os.utime(left, (0, 0))
    with scratch_folder() as held:
        os.utime(held, (0, 0))
        with scratch_folder() as other:
            assert {*tmp_path.iterdir()} == {new, not_ours, held, other}
    assert {*tmp_path.iterdir()} == {new, not_ours}


def _damage(rank: int, folder: Path) -> dict[str, Any]:
    root, name = address(folder), "fsdp2_shards"
    losses = _fit(name, None, root)
    newest = folder / f"step={NUM_STEPS}.ckpt"
    found: dict[str, Any] = {"losses": losses}
    (version,) = _versions(newest)
    # As of an upload that is killed: objects, and nothing that names them.
    unnamed = folder / "step=9.ckpt" / version
    if rank == 0:
        unnamed.mkdir(parents=True)
        shutil.copy(newest / version / "meta.pt", unnamed)
        part = newest / version / "__1_0.distcp"
        part.write_bytes(part.read_bytes()[:-10])
    torch.distributed.barrier()
    found["cut"] = _fit(name, "last", root, every_n_train_steps=100)
    if rank == 0:  # now one byte is another, which only its checksum tells
        saved = folder / "step=4.ckpt"
        part = saved / _versions(saved)[0] / "__1_0.distcp"
        data = bytearray(part.read_bytes())
        data[len(data) // 2] ^= 1
        part.write_bytes(data)
    torch.distributed.barrier()
    found["flipped"] = _fit(name, "last", root, every_n_train_steps=100)
    if rank == 0:  # all that `latest` names is gone, then `latest` is no name
        shutil.rmtree(folder / "step=4.ckpt" / _versions(folder / "step=4.ckpt")[0])
    torch.distributed.barrier()
    found["gone"] = _fit(name, f"{root}/step=4.ckpt", root, every_n_train_steps=100)
    (folder / "step=4.ckpt" / "latest").write_text("../step=2.ckpt")
    torch.distributed.barrier()
    found["no name"] = _fit(name, f"{root}/step=4.ckpt", root, every_n_train_steps=100)
    try:
        _fit(name, f"{root}/step=8.ckpt", root)
    except FileNotFoundError as error:
        found["missing"] = str(error)
    return found


@pytest.mark.filterwarnings("ignore:The checkpoint objects.* is damaged")
@pytest.mark.filterwarnings("ignore:.*instead")
def test_what_is_damaged_or_half_uploaded_is_passed_over(tmp_path: Path) -> None:
    for found in run_trainers(_damage, tmp_path, tmp_path / "saved"):
        assert found["cut"] == found["losses"][4:]
        assert found["flipped"] == found["losses"][2:]
        assert found["gone"] == found["no name"] == found["losses"][2:]
        assert "step=8.ckpt" in found["missing"]


@pytest.mark.parametrize("kind", ["shards", "whole"])
def test_what_lies_beside_a_checkpoint_stays(kind: str, tmp_path: Path) -> None:
    """An address may be that of a whole run, and others have folders named checkpoint-500."""
    place = RemotePath(address(tmp_path / "run"))
    others = ("notes.txt", "a.ckpt", "checkpoint-500/model.safetensors", "checkpoint/x")
    parts = ("checkpoint-1764300000000000001/meta.pt", ".metadata", "__0_0.distcp", "meta.pt")
    for name in (*others, *parts, "global_step1/a.pt"):
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_text("x")
    (tmp_path / "run" / "latest").write_text("global_step1")
    if kind == "shards":
        (place / "checkpoint-1764300000000000002" / "meta.pt").write(lambda file: file.write(b"y"))
        publish(place, "checkpoint-1764300000000000002", None)
        parts = ("checkpoint-1764300000000000002/meta.pt", "latest")
    else:
        remove_shards(place)
        parts = ()
    files = (each for each in (tmp_path / "run").rglob("*") if each.is_file())
    found = {str(each.relative_to(tmp_path / "run")) for each in files}
    assert found == {*others, *parts}


def _fail(rank: int, name: str, folder: Path) -> tuple[str, list[str]]:
    write = ChecksumFile.write

    def failing(file: ChecksumFile, data: Any) -> int:
        if rank == 1 and (folder / "last.ckpt" / "latest").exists():
            raise OSError(28, "No space left on device")
        return write(file, data)

    ChecksumFile.write = failing  # type: ignore[method-assign]
    message = ""
    try:
        _fit(name, None, address(folder), filename="last", enable_version_counter=False)
    except OSError as error:
        message = str(error)
    torch.distributed.barrier()
    return message, _versions(folder / "last.ckpt")


@pytest.mark.parametrize("name", ["fsdp2_shards", "zero_1"])
def test_error_of_one_rank_ends_all_and_the_old_one_stays(name: str, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    (first, versions), (second, _) = run_trainers(_fail, tmp_path, name, saved)
    assert "No space left on device" in first
    assert "No space left on device" in second
    latest = saved / "last.ckpt" / "latest"
    assert versions == [latest.read_text()]


FABRICS: dict[str, Any] = {
    "ddp": lambda: "ddp",
    "shards": lambda: FabricFSDP(auto_wrap_policy={Block}),
    "zero": lambda: FabricDeepSpeed(stage=2),
}


def _loop(name: str, *, load: str | None = None, save: str | None = None) -> list[str]:
    """The losses of a loop of six steps, of which it saves the third or begins with the fourth."""
    fabric = Fabric(accelerator="hpu", devices=2, strategy=FABRICS[name]())
    fabric.launch()
    net = make_net()
    net, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=1e-2))
    state = {"net": net, "optimizer": optimizer, "step": 0}
    if load is not None:
        assert fabric.load(load, state) == {}
    losses = []
    for features, targets in [*loader(fabric.global_rank, 2, 6)][int(state["step"]) :]:
        features, targets = features.to("hpu"), targets.to("hpu")
        loss = (net(features) - targets).pow(2).mean()
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
        state["step"] += 1
        if state["step"] == 3 and save is not None:
            fabric.save(save, state)
    return losses


def _fabrics(rank: int, root: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in FABRICS:
        path = f"{root}/{name}"
        found[name] = (_loop(name, save=path), _loop(name, load=path))
    found["across"] = _loop("ddp", load=f"{root}/shards")
    if root.startswith("s3:"):  # a name that is an object's, and of what is below it
        path = f"{root}/any"
        for name in ("ddp", "shards", "ddp", "zero"):
            _loop(name, save=path)
            found[f"{name} in place"] = _loop(name, load=path)
    return found


@pytest.mark.parametrize("store", ["folder", pytest.param("bucket", marks=pytest.mark.slow)])
def test_fabric_saves_shards_to_a_store_and_goes_on(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    env = request.getfixturevalue("bucket") if store == "bucket" else {}
    root = "s3://bucket/fabric" if env else address(tmp_path / "saved")
    for found in run_trainers(_fabrics, tmp_path, root, env=env):
        for name in FABRICS:
            losses, resumed = found[name]
            assert resumed == losses[3:], name
            assert found.get(f"{name} in place", resumed) == resumed
        expected = [float.fromhex(each) for each in found["shards"][0][3:]]
        assert [float.fromhex(each) for each in found["across"]] == pytest.approx(expected)
