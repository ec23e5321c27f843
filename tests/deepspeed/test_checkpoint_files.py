"""The versions in a checkpoint folder, and the files of one, as DeepSpeed lays them out."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_gaudi.checkpoint import leftovers
from lightning_gaudi.checkpoint.leftovers import sweep
from lightning_gaudi.deepspeed.checkpoint import shards, versions

NUM_RANKS = 3
MODEL = "mp_rank_00_model_states.pt"
OPTIMIZER = "mp_rank_00_optim_states.pt"


def _save(folder: Path, stage: int, tag: str = "checkpoint", prefix: str = "zero_pp_rank_") -> Path:
    """What a stage leaves, as far as it is looked at before it is loaded."""
    version = folder / tag
    version.mkdir(parents=True)
    state = {"dp_world_size": NUM_RANKS, "param_shapes": [{}] if stage else None}
    kept = {"optimizer_state_dict": {"partition_count": [NUM_RANKS, 1]}}
    ranks = range(NUM_RANKS)
    for rank in ranks if stage == 3 else [None]:
        torch.save(state, version / (MODEL if rank is None else f"zero_pp_rank_{rank}_{MODEL}"))
    for rank in ranks if stage else []:
        torch.save(kept, version / f"{prefix}{rank}_{OPTIMIZER}")
    versions.publish(folder, tag, None)
    return version


def _rank_files(prefix: str, kind: str) -> list[str]:
    return [f"{prefix}{rank}_{kind}" for rank in range(NUM_RANKS)]


@pytest.mark.parametrize("prefix", ["zero_pp_rank_", "bf16_zero_pp_rank_"])
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_all_files_of_the_latest_version_are_found(tmp_path: Path, stage: int, prefix: str) -> None:
    _save(tmp_path, stage, "checkpoint-4", prefix)
    found = shards.find(tmp_path)
    assert (found.tag, found.is_stage_3) == ("checkpoint-4", stage == 3)
    assert found.is_bf16 == (stage > 0 and prefix.startswith("bf16"))
    assert found.num_ranks == NUM_RANKS
    model = _rank_files("zero_pp_rank_", MODEL) if stage == 3 else [MODEL]
    assert [each.name for each in found.model_files] == model
    assert [each.name for each in found.optimizer_files] == (
        _rank_files(prefix, OPTIMIZER) if stage else []
    )


@pytest.mark.parametrize(
    ("stage", "missing"),
    [
        (2, [MODEL]),
        (2, [f"zero_pp_rank_2_{OPTIMIZER}"]),
        (2, _rank_files("zero_pp_rank_", OPTIMIZER)),
        (3, [f"zero_pp_rank_0_{MODEL}"]),
        (3, [f"zero_pp_rank_2_{MODEL}", f"zero_pp_rank_1_{OPTIMIZER}"]),
    ],
)
def test_all_that_is_missing_is_named(tmp_path: Path, stage: int, missing: list[str]) -> None:
    version = _save(tmp_path, stage)
    for name in missing:
        (version / name).unlink()
    listed = ", ".join(f"checkpoint/{name}" for name in missing)
    with pytest.raises(FileNotFoundError, match=f"{tmp_path} is damaged: it lacks {listed}\\."):
        shards.find(tmp_path)


@pytest.mark.parametrize("size", [0, 1, 100, -1])
@pytest.mark.parametrize("name", [f"zero_pp_rank_0_{MODEL}", f"zero_pp_rank_1_{OPTIMIZER}"])
def test_what_is_cut_short_is_named(tmp_path: Path, name: str, size: int) -> None:
    path = _save(tmp_path, 3) / name
    os.truncate(path, size if size >= 0 else path.stat().st_size - 1)
    with pytest.raises(ValueError, match=f"has only a part of checkpoint/{name}\\."):
        shards.find(tmp_path)


def test_missing_and_broken_files_are_named_together(tmp_path: Path) -> None:
    version = _save(tmp_path, 2)
    (version / f"zero_pp_rank_0_{OPTIMIZER}").unlink()
    os.truncate(version / f"zero_pp_rank_1_{OPTIMIZER}", 50)
    with pytest.raises(FileNotFoundError, match=r"lacks .*rank_0.* and has only .*rank_1"):
        shards.find(tmp_path)


def test_a_file_that_is_no_zip_is_taken_as_it_is(tmp_path: Path) -> None:
    """DeepSpeed writes such where its configuration turns `checkpoint_serialization` off."""
    version = _save(tmp_path, 0)
    state: dict[str, Any] = {"dp_world_size": 2, "param_shapes": None}
    torch.save(state, version / MODEL, _use_new_zipfile_serialization=False)
    assert shards.find(tmp_path).num_ranks == 2


@pytest.mark.parametrize(
    "name", ["mp_rank_01_model_states.pt", "layer_0_expert_0_mp_rank_00_model_states.pt"]
)
def test_other_kinds_of_parallelism_are_refused(tmp_path: Path, name: str) -> None:
    torch.save({}, _save(tmp_path, 2) / name)
    with pytest.raises(ValueError, match=f"has checkpoint/{name}, which belongs to a model"):
        shards.find(tmp_path)


def test_each_version_has_a_new_name_and_the_last_remains(tmp_path: Path) -> None:
    folder = tmp_path / "last.ckpt"
    (folder / "mine").mkdir(parents=True)
    for expected in ("checkpoint", "checkpoint-2", "checkpoint-3"):
        claim = versions.Claim(folder)
        assert claim.tag == expected
        (folder / claim.tag / MODEL).touch()
        versions.publish(folder, claim.tag, None)
        claim.release()
        assert versions.latest(folder) == claim.tag
        assert {each.name for each in folder.iterdir()} == {claim.tag, "latest", "mine"}


def test_what_others_have_saved_under_such_names_stays(tmp_path: Path) -> None:
    """As Hugging Face's Trainer does."""
    (tmp_path / "checkpoint-500" / "global_step500").mkdir(parents=True)
    (tmp_path / "checkpoint-500" / "trainer_state.json").touch()
    claim = versions.Claim(tmp_path)
    versions.publish(tmp_path, claim.tag, None)
    claim.release()
    assert (tmp_path / "checkpoint-500" / "trainer_state.json").exists()


def _die_saving(folder: Path) -> None:
    claim = versions.Claim(folder)
    (folder / claim.tag / MODEL).write_bytes(b"half")
    os._exit(0)


def _die_publishing(folder: Path) -> None:
    claim = versions.Claim(folder)
    (folder / claim.tag / MODEL).write_bytes(b"whole")
    file = leftovers.create_locked(leftovers.file_for(folder / "latest"))
    file.write(b"half")
    os._exit(0)


def _die(act: Callable[[Path], None], folder: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=act, args=(folder,))
    process.start()
    process.join()


def test_a_first_version_whose_name_was_being_written_is_swept(tmp_path: Path) -> None:
    _die(_die_publishing, tmp_path / "x")
    assert len([*(tmp_path / "x").iterdir()]) == 2
    sweep(tmp_path)
    assert not [*tmp_path.iterdir()]


def test_an_unfinished_version_changes_nothing_and_is_swept(tmp_path: Path) -> None:
    whole, other = tmp_path / "whole", tmp_path / "other"
    claim = versions.Claim(whole)
    versions.publish(whole, claim.tag, None)
    claim.release()
    for folder, left in (
        (whole, {"checkpoint", "checkpoint-2", "latest"}),
        (other, {"checkpoint"}),
    ):
        _die(_die_saving, folder)
        assert {each.name for each in folder.iterdir()} == left
    assert versions.latest(whole) == "checkpoint"
    assert {each.name for each in whole.iterdir()} == {"checkpoint", "latest"}
    sweep(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["whole"]


def test_a_version_that_is_being_saved_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = versions.Claim(tmp_path / "x")
    sweep(tmp_path)
    assert (tmp_path / "x" / claim.tag).is_dir()
    monkeypatch.setattr(leftovers, "_PATIENCE_S", 0.0)
    with pytest.raises(BlockingIOError, match="another process is saving to it"):
        versions.Claim(tmp_path / "x")
    claim.release()


def test_a_file_is_not_replaced_by_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=f"{path}: it is a file"):
        versions.Claim(path)


def test_what_is_no_checkpoint_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"There is no checkpoint at {tmp_path / 'x'}"):
        versions.latest(tmp_path / "x")
    with pytest.raises(FileNotFoundError, match="has no file 'latest'"):
        versions.latest(tmp_path)
    version = _save(tmp_path, 0)
    for part in (version, version / MODEL):
        with pytest.raises(FileNotFoundError, match=f"a part of one. Pass {tmp_path}\\."):
            versions.latest(part)
    (tmp_path / "latest").unlink()
    with pytest.raises(FileNotFoundError, match="has checkpoint, but no file 'latest'"):
        versions.latest(tmp_path)
    (tmp_path / "latest").write_text("checkpoint-7")
    with pytest.raises(FileNotFoundError, match="names the folder 'checkpoint-7'"):
        versions.latest(tmp_path)
