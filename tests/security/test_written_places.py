"""Where a recipe writes what it makes of somebody else's checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recipes.common.errors import UserError
from recipes.common.folders import prediction_path, write_new, write_predictions


def _trainer(root: Path, checkpoint: Path | None) -> Any:
    strategy = SimpleNamespace(broadcast=lambda value: value, barrier=lambda name: None)
    return SimpleNamespace(
        loggers=[],
        default_root_dir=str(root),
        ckpt_path=str(checkpoint) if checkpoint else None,
        strategy=strategy,
        world_size=1,
        global_rank=0,
        is_global_zero=True,
    )


def test_links_beside_a_checkpoint_lead_nowhere(tmp_path: Path) -> None:
    victim, shared, own = (tmp_path / name for name in ("precious", "shared", "own"))
    victim.write_text("mine")
    shared.mkdir()
    for name in ("MRPC.tsv", "MRPC.tsv.0", "out.tsv", "out.tsv.0"):
        (shared / name).symlink_to(victim)
    trainer = _trainer(own, shared / "x.ckpt")
    path = prediction_path(trainer, "MRPC.tsv")
    assert path == own / "MRPC.tsv"
    write_predictions(trainer, path, [(0, "yes")])
    write_predictions(trainer, shared / "out.tsv", [(0, "yes")])  # named by the user
    assert victim.read_text() == "mine"
    assert path.read_text() == (shared / "out.tsv").read_text() == "yes\n"
    assert not (shared / "out.tsv").is_symlink()


def test_what_another_run_has_written_for_a_rank_and_is_no_text_is_refused(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, None)
    trainer.world_size = 2
    (tmp_path / "out.tsv.1").write_text('[[1, "\\ud800"]]')
    with pytest.raises(UserError, match=r"out\.tsv\.1 is not what a rank has written"):
        write_predictions(trainer, tmp_path / "out.tsv", [(0, "yes")])
    assert not (tmp_path / "out.tsv").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="Run as root: it makes another user's folder.")
@pytest.mark.parametrize("spoil", ["owner", "mode"])
def test_nothing_is_written_to_a_folder_of_another_user(tmp_path: Path, spoil: str) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    (shared / "checkpoints").mkdir(parents=True)
    trainer = _trainer(own, shared / "checkpoints" / "x.ckpt")
    assert prediction_path(trainer, "texts.jsonl") == shared / "texts.jsonl"
    if spoil == "owner":
        os.chown(shared, 12345, 12345)
    else:
        shared.chmod(0o777)
    assert prediction_path(trainer, "texts.jsonl") == own / "texts.jsonl"


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_new(path, "\ud800")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_new(tmp_path / "folder", "new")
    assert path.read_text() == "old"
    assert {each.name for each in tmp_path.iterdir()} == {"x", "folder"}
