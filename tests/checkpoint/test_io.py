from __future__ import annotations

import argparse
import os
import stat
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_gaudi import HPUCheckpointIO
from lightning_gaudi.checkpoint.files import load_file
from lightning_gaudi.reliability import settings
from tests.helpers.forked import fork_python
from tests.helpers.tiny import TinyModule, ValidatedModule, batches, hpu_trainer


def _trained(path: Path) -> TinyModule:
    model = TinyModule()
    trainer = hpu_trainer(max_steps=3)
    trainer.fit(model, batches(3))
    trainer.strategy.model_to_device()
    trainer.save_checkpoint(path)
    return model


def test_checkpoint_loads_on_a_machine_without_hpu(tmp_path: Path) -> None:
    path = tmp_path / "model.ckpt"
    model = _trained(path)
    torch.save(model.cpu().state_dict(), tmp_path / "expected.pt")
    fork_python(
        """
        import sys, torch
        import lightning.pytorch as pl
        from tests.helpers.tiny import QUIET, TinyModule, batches
        path, expected = sys.argv[1:]
        checkpoint = torch.load(path)
        assert not hasattr(torch, "hpu") and "habana_frameworks" not in sys.modules
        for name, weight in torch.load(expected).items():
            assert torch.equal(checkpoint["state_dict"][name], weight)
        model = TinyModule.load_from_checkpoint(path)
        trainer = pl.Trainer(accelerator="cpu", max_steps=5, **QUIET)
        trainer.fit(model, batches(5), ckpt_path=path)
        assert trainer.global_step == 5 and len(model.losses) == 2
        """,
        str(path),
        str(tmp_path / "expected.pt"),
        env={"LIGHTNING_GAUDI_SIMULATE": None, "LIGHTNING_GAUDI_AUTOLOAD": "0"},
    )


@pytest.mark.filterwarnings("ignore:A checkpoint holds")
def test_tensors_are_saved_from_the_cpu_however_deep(tmp_path: Path) -> None:
    weight = torch.arange(4.0, device="hpu", requires_grad=True)
    checkpoint = {
        "list": [weight, {"buffer": torch.ones(2, dtype=torch.bfloat16, device="hpu")}],
        "module": nn.Linear(2, 2).to("hpu"),
        "namespace": argparse.Namespace(tensor=torch.ones(1, device="hpu")),
        "cpu": torch.ones(1),
    }
    HPUCheckpointIO().save_checkpoint(checkpoint, tmp_path / "deep.ckpt")
    loaded = torch.load(tmp_path / "deep.ckpt", weights_only=False)
    assert loaded["list"][0].device.type == "cpu"
    assert torch.equal(loaded["list"][0], weight.detach().cpu())
    assert loaded["list"][0].requires_grad
    assert loaded["list"][1]["buffer"].dtype == torch.bfloat16
    assert isinstance(loaded["module"].weight, nn.Parameter)
    assert loaded["module"].weight.device.type == "cpu"
    assert loaded["namespace"].tensor.device.type == "cpu"
    assert checkpoint["module"].weight.device.type == "hpu"


def test_tied_weights_are_saved_once(tmp_path: Path) -> None:
    first, second = nn.Linear(256, 256, bias=False), nn.Linear(256, 256, bias=False)
    second.weight = first.weight
    state = nn.Sequential(first, second).to("hpu").state_dict()
    HPUCheckpointIO().save_checkpoint({"state_dict": state}, tmp_path / "tied.ckpt")
    loaded = torch.load(tmp_path / "tied.ckpt", weights_only=True)["state_dict"]
    assert loaded["0.weight"].data_ptr() == loaded["1.weight"].data_ptr()
    assert (tmp_path / "tied.ckpt").stat().st_size < 1.2 * 256 * 256 * 4


class Arguments:
    """What a checkpoint should not hold."""

    x = 1


@pytest.mark.filterwarnings("ignore:A checkpoint holds")
def test_weights_only_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_warned", set())
    io, path = HPUCheckpointIO(), tmp_path / "class.ckpt"
    io.save_checkpoint({"arguments": Arguments()}, path)
    with pytest.warns(UserWarning, match=r"trusted \(weights_only=False\)"):
        assert io.load_checkpoint(path, weights_only=False)["arguments"].x == 1
    refused = r"class\.ckpt was not loaded: it holds .*Arguments"
    with pytest.raises(ValueError, match=refused):
        io.load_checkpoint(path, weights_only=True)
    assert io.load_checkpoint(path)["arguments"].x == 1  # which this process has written
    torch.save({"arguments": Arguments(), "by": "others"}, path)
    for weights_only in (True, None):
        with pytest.raises(ValueError, match=refused):
            io.load_checkpoint(path, weights_only=weights_only)


def test_weights_only_is_explicit_where_the_vendor_has_another_default(tmp_path: Path) -> None:
    path = tmp_path / "class.ckpt"
    HPUCheckpointIO().save_checkpoint({"arguments": Arguments()}, path)
    result = fork_python(
        """
        import sys, torch
        from lightning_gaudi import HPUCheckpointIO, vendor
        assert vendor.is_lazy()
        HPUCheckpointIO().load_checkpoint(sys.argv[1])
        """,
        str(path),
        env={"PT_HPU_LAZY_MODE": "1"},
        check=False,
    )
    assert "UntrustedCheckpointError" in result.stderr


def test_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"There is no checkpoint at .*none\.ckpt"):
        HPUCheckpointIO().load_checkpoint(tmp_path / "none.ckpt")


def test_storage_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"no use for storage_options=\{'a': 1\}"):
        HPUCheckpointIO().save_checkpoint({}, tmp_path / "x.ckpt", storage_options={"a": 1})


def test_address_of_fsspec_is_written() -> None:
    io = HPUCheckpointIO()
    io.save_checkpoint({"x": torch.ones(2, device="hpu")}, "memory://folder/x.ckpt")
    assert io.load_checkpoint("memory://folder/x.ckpt", weights_only=True)["x"].tolist() == [1, 1]


def test_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    HPUCheckpointIO().save_checkpoint({}, f"file://{tmp_path}/sub/x.ckpt")
    umask = os.umask(0)
    os.umask(umask)
    mode = stat.S_IMODE((tmp_path / "sub" / "x.ckpt").stat().st_mode)
    assert mode == 0o666 & ~umask


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists:UserWarning")
def test_model_checkpoint_keeps_the_best_and_resumes_the_last(tmp_path: Path) -> None:
    callback = ModelCheckpoint(tmp_path, monitor="val_loss", save_last=True, save_top_k=1)
    trainer = hpu_trainer(max_epochs=3, callbacks=[callback], enable_checkpointing=True)
    trainer.fit(ValidatedModule(), batches(3), batches(2))
    assert len(list(tmp_path.iterdir())) == 2
    assert (tmp_path / "last.ckpt").exists()
    resumed = hpu_trainer(max_epochs=4, callbacks=[callback], enable_checkpointing=True)
    resumed.fit(ValidatedModule(), batches(3), batches(2), ckpt_path="last")
    assert resumed.global_step == 12


def test_full_disk_is_one_clear_error_and_keeps_the_old_checkpoint(tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk."""
    result = fork_python(
        """
        import resource, sys, torch
        from pathlib import Path
        from lightning_gaudi import HPUCheckpointIO
        path = Path(sys.argv[1]) / "model.ckpt"
        io = HPUCheckpointIO()
        io.save_checkpoint({"weight": torch.ones(4, device="hpu")}, path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        for size in (1 << 18, 1 << 22):
            try:
                io.save_checkpoint({"weight": torch.zeros(size, device="hpu")}, path)
            except OSError as error:
                print(error.errno, error)
        print([file.name for file in path.parent.iterdir()])
        print(io.load_checkpoint(path)["weight"].tolist())
        """,
        str(tmp_path),
    )
    lines = result.stdout.splitlines()
    assert len(lines) == 4
    for line in lines[:2]:
        assert f"Could not save {tmp_path}/model.ckpt: File too large" in line
        assert "MiB, and this process may write files of 1.0 MiB (ulimit -f)." in line
        assert "The checkpoint that was there before is intact." in line
    assert lines[2:] == ["['model.ckpt']", "[1.0, 1.0, 1.0, 1.0]"]


@pytest.mark.parametrize("address", ["https://host/folder/", "https://host", "https://host/a/.."])
def test_an_address_without_the_name_of_a_file_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=rf"{address} names no file\. Pass the address of a"):
        load_file(address)


def test_a_folder_of_shards_is_no_file_to_load_a_module_from(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="make one: `lightning-gaudi consolidate FOLDER"):
        TinyModule.load_from_checkpoint(tmp_path)
