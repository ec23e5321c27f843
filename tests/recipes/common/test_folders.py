"""What a run leaves where its folder is an address: there, and nowhere on this machine."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from recipes.common.drawing import Panel, save_png
from recipes.common.folders import prediction_path, run_folder, write_new, write_predictions
from tests.helpers.tiny import hpu_trainer

PANELS = [Panel("loss", {"training": [(2, 3.0), (4, 2.0)]})]


def test_reports_and_predictions_go_to_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    root = f"memory://{tmp_path.name}"
    trainer = hpu_trainer(default_root_dir=root)
    folder = run_folder(trainer)
    folder.mkdir(parents=True, exist_ok=True)
    write_new(folder / "report.html", "<html>")
    save_png("Run", PANELS, folder / "report.png")
    assert not trainer.ckpt_path
    write_predictions(trainer, prediction_path(trainer, "a.tsv"), [(1, "b"), (0, "a")], "head")
    assert f"2 predictions written to {root}/a.tsv" in capsys.readouterr().out
    store = fsspec.filesystem("memory")
    assert store.cat(f"/{tmp_path.name}/a.tsv") == b"head\na\nb\n"
    assert store.cat(f"/{tmp_path.name}/report.html") == b"<html>"
    assert store.cat(f"/{tmp_path.name}/report.png")[:4] == b"\x89PNG"
    assert len(store.ls(f"/{tmp_path.name}")) == 3
    assert [*tmp_path.iterdir()] == []


def test_predictions_lie_beside_the_checkpoint_in_a_store(tmp_path: Path) -> None:
    trainer = hpu_trainer(default_root_dir=tmp_path)
    trainer.ckpt_path = "memory://run/checkpoints/last.ckpt"
    assert str(prediction_path(trainer, "a.tsv")) == "memory://run/a.tsv"
