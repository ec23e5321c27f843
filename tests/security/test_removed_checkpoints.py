"""A checkpoint that a fit goes on from does not say what is removed in other folders."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_gaudi.strategies.jobs import JobRecord
from lightning_gaudi.strategies.resuming import why_not_remove
from tests.helpers.tiny import TinyModule, batches, hpu_trainer

pytestmark = pytest.mark.filterwarnings(
    "ignore:Checkpoint directory", "ignore:The dirpath has", "ignore:You're resuming from"
)


def _fit(folder: Path, max_steps: int, ckpt_path: str | None = None) -> None:
    keep = ModelCheckpoint(folder, every_n_train_steps=1, save_top_k=1, monitor=None)
    trainer = hpu_trainer(
        max_steps=max_steps, callbacks=[keep], enable_checkpointing=True, default_root_dir=folder
    )
    trainer.fit(TinyModule(), batches(6), ckpt_path=ckpt_path)


@pytest.mark.parametrize("way", ["upwards", "link"])
def test_the_state_of_a_callback_removes_nothing_outside(tmp_path: Path, way: str) -> None:
    folder, victim = tmp_path / "run", tmp_path / "thesis" / "chapter"
    victim.mkdir(parents=True)
    (victim / "text").write_text("mine")
    _fit(folder, 2)
    (saved,) = folder.glob("*.ckpt")
    content = torch.load(saved, weights_only=False)
    (state,) = (each for each in content["callbacks"].values() if "best_model_path" in each)
    (folder / "link").symlink_to(victim.parent)
    named = f"{folder}/../thesis/chapter" if way == "upwards" else f"{folder}/link/chapter"
    state.update(best_model_path=named, kth_best_model_path=named, last_model_path=named)
    theirs = folder / "theirs.ckpt"
    torch.save(content, theirs)
    with pytest.warns(UserWarning, match=r"chapter is not removed, although this fit, or"):
        _fit(folder, 4, str(theirs))
    assert (victim / "text").read_text() == "mine"


def test_which_paths_are_removed(tmp_path: Path) -> None:
    folder, outside = tmp_path / "run", tmp_path / "outside"
    (folder / "epoch=1").mkdir(parents=True)
    outside.mkdir()
    (folder / "link").symlink_to(outside)
    place = tmp_path / "place"
    place.symlink_to(folder)  # what the user saves to may itself be a link
    for saved in (folder, place):
        trainer: Any = type("Trainer", (), {"callbacks": [ModelCheckpoint(saved)]})
        for name in ("a.ckpt", "epoch=1/a.ckpt"):
            assert why_not_remove(trainer, saved / name) is None
        assert why_not_remove(trainer, f"file://{saved}/a.ckpt") is None
        assert why_not_remove(trainer, tmp_path / "b.ckpt") is None  # of a callback of the user's
        assert "upwards" in str(why_not_remove(trainer, f"{saved}/../b.ckpt"))
        assert "a link leads" in str(why_not_remove(trainer, folder / "link" / "b.ckpt"))
        for address in ("local:///etc", "memory://x", "s3://bucket/x"):
            assert "no checkpoint is saved to" in str(why_not_remove(trainer, address))
    trainer = type("Trainer", (), {"callbacks": [ModelCheckpoint("memory://runs")]})
    assert why_not_remove(trainer, "memory://runs/a.ckpt") is None


_RECORDS = [
    *("", "[]", "{}", "null", "[" * 100_000, '{"agent": "a"}', "\xff"),
    '{"agent": "a", "first_path": 3, "saved": []}',
    '{"agent": 1, "first_path": null, "saved": []}',
    '{"agent": "a", "first_path": null, "saved": {}}',
    '{"agent": "a", "first_path": null, "saved": ["ab"]}',
    '{"agent": "a", "first_path": null, "saved": [[1, null]]}',
    '{"agent": "a", "first_path": null, "saved": [["x\\u0000", null]]}',
    '{"agent": "a", "first_path": null, "saved": [["x", [1, 2]]]}',
    '{"agent": "a", "first_path": null, "saved": [["x", [1, 2, 1e999]]]}',
    '{"agent": "a", "saved": []}',
]


@pytest.mark.parametrize("text", _RECORDS)
def test_a_record_of_a_job_is_one_or_refused(tmp_path: Path, text: str) -> None:
    record = JobRecord(tmp_path, "job", "agent", ("train.py",))
    record.path.parent.mkdir()
    record.path.write_text(text, "latin-1")
    with pytest.raises(ValueError, match=r"."):
        record.read()
    record.path.write_text(json.dumps({"agent": "a", "first_path": None, "saved": [["x", None]]}))
    assert record.read() == "a"


def test_a_record_that_somebody_else_has_put_there_is_not_read(tmp_path: Path) -> None:
    record = JobRecord(tmp_path, "job", "agent", ("train.py",))
    record.is_about_to_save(str(tmp_path / "x"))
    theirs = tmp_path / "theirs"
    record.path.rename(theirs)
    record.path.symlink_to(theirs)
    with pytest.raises(OSError, match="symbolic links"):
        record.read()
    record.path.unlink()
    os.mkfifo(record.path)
    with pytest.raises(OSError, match="another user's file"):
        record.read()
    record.path.unlink()
    if os.geteuid() == 0:
        theirs.rename(record.path)
        os.chown(record.path, 12345, 12345)
        with pytest.raises(OSError, match=r"another user's file \(12345\)"):
            record.read()
        record.path.unlink()
    record.path.parent.rmdir()
    record.path.parent.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(OSError, match="symbolic link"):
        record.is_about_to_save(str(tmp_path / "y"))
    assert not list((tmp_path / "elsewhere").iterdir())
