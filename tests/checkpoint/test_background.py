"""Checkpoints that are written while training goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_gaudi import HPUCheckpointIO
from lightning_gaudi.checkpoint import files as checkpoint_files
from lightning_gaudi.checkpoint.background import BackgroundWriter
from lightning_gaudi.checkpoint.snapshot import HostMemory, Snapshot
from tests.helpers.tiny import TinyModule, batches, hpu_trainer


def _fail() -> None:
    raise OSError(28, "No space left on device")


def test_next_save_waits_and_errors_are_raised_once() -> None:
    writer, gate, done = BackgroundWriter(), threading.Event(), []

    def write() -> None:
        assert gate.wait(60)
        done.append("first")

    writer.save(write)
    writer.check()
    assert not writer.is_idle
    threading.Timer(0.1, gate.set).start()
    writer.save(lambda: done.append("second"))
    assert done[0] == "first"
    writer.wait()
    assert done == ["first", "second"]
    writer.save(_fail)
    with pytest.raises(OSError, match="No space left"):
        writer.wait()
    writer.close()


def test_removal_comes_after_the_save_and_not_if_that_fails() -> None:
    writer, gate, done = BackgroundWriter(), threading.Event(), []
    writer.save(lambda: done.append("saved") if gate.wait(60) else None)
    writer.remove(lambda: done.append("removed"))
    assert not done
    gate.set()
    writer.wait()
    assert done == ["saved", "removed"]
    writer.save(_fail)
    writer.remove(lambda: done.append("removed again"))
    with pytest.raises(OSError, match="No space left"):
        writer.wait()
    writer.remove(lambda: done.append("at once"))
    writer.close()
    assert done == ["saved", "removed", "at once"]


def test_snapshot_is_of_now_and_keeps_ties() -> None:
    weight = torch.arange(4.0, device="hpu")
    module, numbers = nn.Linear(2, 2).to("hpu"), [1]
    state = {"a": weight, "b": weight, "cpu": torch.zeros(3), "module": module, "numbers": numbers}
    before = module.weight.detach().cpu()
    memory = HostMemory()
    for _ in range(2):
        snapshot = Snapshot(state, memory)
    weight.zero_()
    state["cpu"].fill_(1)  # type: ignore[attr-defined]
    module.weight.data.zero_()
    numbers.append(2)
    found = snapshot.state()
    assert found["a"].tolist() == [0, 1, 2, 3]
    assert found["a"].data_ptr() == found["b"].data_ptr()
    assert found["cpu"].tolist() == [0, 0, 0]
    assert torch.equal(found["module"].weight, before)
    assert isinstance(found["module"].weight, nn.Parameter)
    assert found["numbers"] == [1]


def test_what_cannot_be_pickled_is_said_at_once(tmp_path: Path) -> None:
    io = HPUCheckpointIO()
    io.start_background()
    with pytest.raises(Exception, match="pickle"):
        io.save_checkpoint({"x": lambda: 0}, tmp_path / "x")
    io.stop_background()


def _fit(folder: Path, **reliability: Any) -> tuple[Any, TinyModule]:
    torch.manual_seed(1)
    model = TinyModule()
    keep = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=1)
    trainer = hpu_trainer(
        max_steps=4,
        callbacks=[keep],
        enable_checkpointing=True,
        default_root_dir=folder,
        **reliability,
    )
    trainer.fit(model, batches(4))
    return trainer, model


def _async() -> dict[str, Any]:
    from lightning_gaudi.strategies.single import SingleHPUStrategy

    return {"strategy": SingleHPUStrategy(reliability={"async_save": True})}


def test_fit_ends_with_the_same_checkpoints(tmp_path: Path) -> None:
    found = []
    for name, options in (("sync", {}), ("async", _async())):
        _fit(tmp_path / name, **options)
        (path,) = (tmp_path / name).iterdir()
        assert path.name == "step=4.ckpt"
        found.append(HPUCheckpointIO().load_checkpoint(path)["state_dict"])
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])


def test_error_of_the_writer_ends_the_fit_and_the_old_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, targets = checkpoint_files.save_file, []

    def failing(checkpoint: Any, target: Path, **options: Any) -> None:
        targets.append(target.name)
        if len(targets) == 2:
            raise OSError(28, f"Could not save {target}")
        save(checkpoint, target, **options)

    monkeypatch.setattr(checkpoint_files, "save_file", failing)
    with pytest.raises(OSError, match=r"Could not save .*step=2\.ckpt"):
        _fit(tmp_path, **_async())
    assert [each.name for each in tmp_path.iterdir()] == ["step=1.ckpt"]


def test_checkpoint_of_another_io_cannot_be_written_so(tmp_path: Path) -> None:
    from lightning.fabric.plugins import TorchCheckpointIO

    with pytest.raises(MisconfigurationException, match="async_save=True is for HPUCheckpointIO"):
        _fit(tmp_path, **_async(), plugins=[TorchCheckpointIO()])
