"""The newest checkpoint by what it says of itself, if it is what was saved."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_gaudi import HPUCheckpointIO
from lightning_gaudi._core.progress import begin_session, continue_run, current_session
from lightning_gaudi.checkpoint.candidates import candidates, fallbacks, whole
from lightning_gaudi.checkpoint.errors import DamagedCheckpointError
from tests.helpers.tiny import TinyModule, ValidatedModule, batches, hpu_trainer

pytestmark = pytest.mark.filterwarnings(
    "ignore:Checkpoint directory", "ignore:The dirpath has", "ignore:You're resuming from"
)


def _save(path: Path, step: int, **others: Any) -> Path:
    state = {"loops": {}, "global_step": step, "pytorch-lightning_version": "2.6.6"}
    HPUCheckpointIO().save_checkpoint({**state, "weight": torch.ones(2000), **others}, path)
    return path


def _newest(*folders: Path) -> list[Path]:
    return [each.path for each in candidates(folders)]


def _flip(path: Path) -> Path:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    return path


def test_step_decides_and_not_the_time_of_the_file(tmp_path: Path) -> None:
    begin_session()
    newest = _save(tmp_path / "a.ckpt", 7)
    _save(tmp_path / "last.ckpt", 5)
    (tmp_path / "notes.txt").write_text("x")
    assert _newest(tmp_path, tmp_path / "none")[0] == newest


def test_fit_that_began_last_comes_first(tmp_path: Path) -> None:
    begin_session()
    _save(tmp_path / "a.ckpt", 100)
    begin_session()
    newest = _save(tmp_path / "b.ckpt", 3)
    assert _newest(tmp_path)[0] == newest


def test_those_that_are_cut_short_are_named_and_left_out(tmp_path: Path) -> None:
    first = _save(tmp_path / "a.ckpt", 1)
    second = _save(tmp_path / "b.ckpt", 2)
    os.truncate(third := _save(tmp_path / "c.ckpt", 3), 3000)
    with pytest.warns(UserWarning, match="It is left out") as warned:
        assert whole([first, tmp_path / "removed.ckpt", second, third]) == [second, first]
    (said,) = {str(each.message) for each in warned}
    assert "c.ckpt is cut short or damaged: 3,000 bytes of" in said


def test_weights_alone_and_other_programs_files_come_last(tmp_path: Path) -> None:
    torch.save({"epoch": 1}, tmp_path / "other.ckpt")
    HPUCheckpointIO().save_checkpoint(
        {"pytorch-lightning_version": "2.6.6", "global_step": 9}, tmp_path / "weights.ckpt"
    )
    assert _newest(tmp_path) == [tmp_path / "other.ckpt"]
    ours = _save(tmp_path / "a.ckpt", 1)
    assert _newest(tmp_path) == [ours, tmp_path / "other.ckpt"]


def test_only_older_ones_of_the_same_run_take_the_place_of_another(tmp_path: Path) -> None:
    begin_session()
    other = _save(tmp_path / "other.ckpt", 4)
    begin_session()
    first, second, third = (_save(tmp_path / f"{step}.ckpt", step) for step in (1, 2, 3))
    _flip(second)
    assert fallbacks(second) == [first]
    os.truncate(third, 100)
    assert fallbacks(third) == []  # of one of two runs
    other.unlink()
    os.utime(third, (time.time() + 5,) * 2)
    assert fallbacks(third) == [second, first]


@pytest.mark.parametrize(("behind_s", "is_newer"), [(3600, True), (3 * 86400, False)])
def test_a_machine_whose_clock_is_behind_saves_what_is_newer(
    behind_s: float, is_newer: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a pod on another node, which goes on from what the first one saved."""
    begin_session()
    began = current_session().began
    first = _save(tmp_path / "first.ckpt", 4)
    now = time.time() - behind_s
    monkeypatch.setattr(time, "time", lambda: now)
    begin_session()
    continue_run("x", began)
    second = _save(tmp_path / "second.ckpt", 6)
    monkeypatch.undo()
    assert _newest(tmp_path)[0] == (second if is_newer else first)


def test_resumed_run_is_the_same(tmp_path: Path) -> None:
    begin_session()
    continue_run("x")
    first = _save(tmp_path / "1.ckpt", 1)
    begin_session()
    continue_run("x")
    assert fallbacks(_flip(_save(tmp_path / "2.ckpt", 2))) == [first]


def _fit(folder: Path, max_steps: int, ckpt_path: str | None = None) -> tuple[Any, TinyModule]:
    model = TinyModule()
    keep = ModelCheckpoint(folder, every_n_train_steps=1, save_top_k=-1, save_last=True)
    trainer = hpu_trainer(
        max_steps=max_steps, callbacks=[keep], enable_checkpointing=True, default_root_dir=folder
    )
    trainer.fit(model, batches(6), ckpt_path=ckpt_path)
    return trainer, model


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    _fit(folder, 3)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "run"))


def _step(folder: Path, step: int) -> Path:
    return next(folder.glob(f"*step={step}.ckpt"))


def test_last_is_the_newest_whatever_it_is_called(folder: Path) -> None:
    shutil.copy(_step(folder, 1), folder / "last.ckpt")
    (folder / ".saving-file-0.tmp").write_bytes(b"half")
    os.utime(folder / ".saving-file-0.tmp", (0, 0))
    _, model = _fit(folder, 5, "last")
    assert len(model.losses) == 2
    assert not list(folder.glob(".saving-*"))


def test_last_that_is_damaged_is_replaced_by_the_one_before(folder: Path) -> None:
    (folder / "last.ckpt").unlink()
    _flip(_step(folder, 3))
    with pytest.warns(UserWarning, match=r"step=3\.ckpt is damaged.*\s.* goes on from .*step=2"):
        trainer, model = _fit(folder, 5, "last")
    assert trainer.ckpt_path == str(_step(folder, 2))
    assert len(model.losses) == 3


def test_chosen_one_that_is_damaged_is_replaced_by_an_older_one(folder: Path) -> None:
    _flip(_step(folder, 2))
    with pytest.warns(UserWarning, match=r"step=2\.ckpt is damaged.*\s.* goes on from .*step=1"):
        _, model = _fit(folder, 5, str(_step(folder, 2)))
    assert len(model.losses) == 4


def test_nothing_takes_the_place_of_the_only_one_or_of_one_that_is_tested(folder: Path) -> None:
    damaged = _flip(_step(folder, 1))
    with pytest.raises(DamagedCheckpointError, match="no earlier one of the same run"):
        _fit(folder, 5, str(damaged))
    with pytest.raises(DamagedCheckpointError, match="is damaged"):
        hpu_trainer().validate(ValidatedModule(), batches(1), ckpt_path=str(damaged))


def test_last_is_not_taken_for_none_where_all_are_damaged(folder: Path) -> None:
    for path in folder.iterdir():
        os.truncate(path, 100)
    with pytest.raises(
        DamagedCheckpointError, match=r"there is no checkpoint that is whole\..*cut"
    ):
        _fit(folder, 5, "last")
