"""What a fit begins with when torchrun or SLURM starts it again."""

from __future__ import annotations

import json
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_gaudi._core import progress
from lightning_gaudi.checkpoint.errors import DamagedCheckpointError
from lightning_gaudi.strategies import resuming
from lightning_gaudi.strategies.jobs import FOLDER
from lightning_gaudi.strategies.parts import AsyncSaves
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import QUIET, TinyModule, batches

pytestmark = [
    pytest.mark.filterwarnings("ignore:The dirpath has changed from"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before"),
]

JOB = {
    "TORCHELASTIC_RUN_ID": "job",
    "TORCHELASTIC_ERROR_FILE": "/tmp/elastic/job_a/attempt_0/0/error.json",
}


class Begin(pl.Callback):
    step = -1

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.step = trainer.global_step


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call it as if a process were started: it has not fitted before, and the environment is so."""

    def start(env: dict[str, str]) -> None:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        progress._num_fits.clear()

    monkeypatch.setattr(sys, "argv", ["train.py"])
    return start


def _fit(
    root: Path,
    max_steps: int = 4,
    ckpt_path: Any = None,
    model: pl.LightningModule | None = None,
    folder: str = "checkpoints",
    accelerator: str = "hpu",
    saves: pl.Callback | None = None,
    others: Sequence[pl.Callback] = (),
) -> int:
    """Fit, with a checkpoint each two steps unless told otherwise; the step at which it began."""
    begin = Begin()
    if saves is None:
        saves = ModelCheckpoint(root / folder, every_n_train_steps=2, save_top_k=-1)
    trainer = pl.Trainer(
        accelerator=accelerator,
        devices=1,
        max_steps=max_steps,
        max_epochs=-1,
        default_root_dir=root,
        callbacks=[saves, begin, *others],
        **QUIET | {"enable_checkpointing": True},
    )
    trainer.fit(model or TinyModule(), batches(16), ckpt_path=ckpt_path)
    return begin.step


def _restarted(count: int = 1) -> dict[str, str]:
    return JOB | {"TORCHELASTIC_RESTART_COUNT": str(count)}


def test_it_goes_on_from_its_newest_checkpoint(
    starts: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    starts(JOB)
    assert _fit(tmp_path, folder="version_0") == 0
    starts(_restarted(1))
    assert _fit(tmp_path, 6, folder="version_1") == 4
    assert "lightning-gaudi: torchrun has started this again; it goes on from" in (
        capfd.readouterr().err
    )
    starts(_restarted(2))
    assert _fit(tmp_path, 8, folder="version_2") == 6


def test_a_checkpoint_of_an_older_run_in_the_same_folder_is_not_taken(
    starts: Any, tmp_path: Path
) -> None:
    assert _fit(tmp_path, 10) == 0  # no job
    starts(JOB | {"TORCHELASTIC_RUN_ID": "older"})
    assert _fit(tmp_path, 8) == 0
    starts(JOB)
    assert _fit(tmp_path, 4, folder="other") == 0
    starts(_restarted())
    assert _fit(tmp_path, 6) == 4


def test_a_job_that_is_not_restarted_begins_anew(starts: Any, tmp_path: Path) -> None:
    starts(JOB)
    assert _fit(tmp_path) == 0
    starts({**JOB, "TORCHELASTIC_ERROR_FILE": "/tmp/elastic/job_b/attempt_0/0/error.json"})
    assert _fit(tmp_path) == 0


class Dies(TinyModule):
    """As a pod that is evicted."""

    dies_at: int | None = None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.trainer.global_step == self.dies_at:
            raise RuntimeError("evicted")
        return super().training_step(batch, batch_idx)


def _evicted(root: Path, **settings: Any) -> None:
    model = Dies()
    model.dies_at = 5
    with pytest.raises(RuntimeError, match="evicted"):
        _fit(root, 8, model=model, **settings)


@pytest.mark.parametrize("environ", [{}, JOB, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}])
def test_a_job_with_a_name_goes_on_in_a_new_pod(
    environ: dict[str, str], starts: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    starts({**environ, "LIGHTNING_GAUDI_JOB_ID": "bert-17"})
    _evicted(tmp_path)
    starts({"TORCHELASTIC_ERROR_FILE": "/tmp/elastic/job_b/attempt_0/0/error.json"})
    assert _fit(tmp_path, 8, model=Dies()) == 4
    assert "LIGHTNING_GAUDI_JOB_ID=bert-17 has started this again; it goes on from" in (
        capfd.readouterr().err
    )
    starts({"LIGHTNING_GAUDI_JOB_ID": "bert-18"})
    assert _fit(tmp_path, 8, model=Dies()) == 0


def test_a_rendezvous_id_of_its_own_goes_on_in_a_new_pod_until_the_fit_has_ended(
    starts: Any, tmp_path: Path
) -> None:
    starts(JOB)
    _evicted(tmp_path)
    for step in (4, 0):
        starts({"TORCHELASTIC_ERROR_FILE": f"/tmp/elastic/job_{step}/attempt_0/0/error.json"})
        assert _fit(tmp_path, 8, model=Dies()) == step


def test_a_fit_whose_last_checkpoint_was_not_written_has_not_ended(
    starts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any) -> None:
        raise OSError("the disk is full")

    starts(JOB)
    with monkeypatch.context() as patch:
        patch.setattr(AsyncSaves, "end", fail)
        with pytest.raises(OSError, match="the disk is full"):
            _fit(tmp_path, 8)
    starts({"TORCHELASTIC_ERROR_FILE": "/tmp/elastic/job_b/attempt_0/0/error.json"})
    assert _fit(tmp_path, 10) == 8


@pytest.mark.parametrize("variables", [JOB, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}])
def test_a_job_that_cannot_know_says_that_it_begins_anew(
    variables: dict[str, str], starts: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    nameless = {**variables, "TORCHELASTIC_RUN_ID": "none"} if variables is JOB else variables
    starts(nameless)
    _evicted(tmp_path)
    starts({"TORCHELASTIC_ERROR_FILE": "/tmp/elastic/job_b/attempt_0/0/error.json"})
    assert _fit(tmp_path, 8, model=Dies()) == 0
    said = capfd.readouterr().err
    assert "epoch=0-step=4.ckpt before and did not end" in said
    assert "set LIGHTNING_GAUDI_JOB_ID to a name of the job" in said
    starts({"TORCHELASTIC_ERROR_FILE": "/tmp/elastic/job_c/attempt_0/0/error.json"})
    assert _fit(tmp_path, 8, model=Dies()) == 0
    assert "did not end" not in capfd.readouterr().err


@pytest.mark.parametrize("ending", ["", "damaged"])
def test_an_object_store_is_as_a_disk(
    ending: str, starts: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import fsspec

    root: Any = f"memory://runs/{tmp_path.name}"
    saves = ModelCheckpoint(every_n_train_steps=2, save_top_k=-1)
    starts({"LIGHTNING_GAUDI_JOB_ID": "bert-17"})
    _evicted(root, saves=saves)
    system = fsspec.filesystem("memory")
    newest = f"/runs/{tmp_path.name}/checkpoints/epoch=0-step=4.ckpt"
    if ending:
        system.pipe(newest, system.cat(newest)[:-100])
    progress._num_fits.clear()
    step = 2 if ending else 4
    if ending:
        warnings.filterwarnings("ignore", message=r"memory://runs/.* is cut short or damaged")
    assert (
        _fit(root, 8, model=Dies(), saves=ModelCheckpoint(every_n_train_steps=2, save_top_k=-1))
        == step
    )
    assert f"it goes on from {root}/checkpoints/epoch=0-step={step}.ckpt" in capfd.readouterr().err


def test_a_named_job_that_comes_by_another_command_says_so(
    starts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    starts({"LIGHTNING_GAUDI_JOB_ID": "bert-17"})
    _fit(tmp_path, 4)
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs=2"])
    progress._num_fits.clear()
    assert _fit(tmp_path, 8) == 0
    said = capfd.readouterr().err
    assert "it begins at the first step: this job has saved before, by another command" in said
    assert "(train.py). To go on from there, start it by that one, or pass ckpt_path" in said


def test_of_two_processes_of_a_named_job_the_earlier_one_ends(starts: Any, tmp_path: Path) -> None:
    class Second(pl.Callback):
        """Another process of the job begins in the middle of this one, and saves."""

        def on_train_batch_start(self, trainer: pl.Trainer, *args: Any) -> None:
            if trainer.global_step == 3:
                (path,) = (tmp_path / FOLDER).iterdir()
                record = json.loads(path.read_text())
                path.write_text(json.dumps(record | {"start": "node-2 17 abc"}))

    starts({"LIGHTNING_GAUDI_JOB_ID": "bert-17"})
    saves = ModelCheckpoint(tmp_path, every_n_train_steps=2, save_top_k=-1)
    with pytest.raises(RuntimeError, match=r"process 17 on node-2 has saved since"):
        _fit(tmp_path, 8, saves=saves, others=[Second()])
    assert [path.name for path in tmp_path.glob("*.ckpt")] == ["epoch=0-step=2.ckpt"]


def test_a_fine_tune_does_not_begin_again_from_where_it_first_began(
    starts: Any, tmp_path: Path
) -> None:
    _fit(tmp_path, 2, folder="pretrained")
    first = tmp_path / "pretrained" / "epoch=0-step=2.ckpt"
    starts(JOB)
    assert _fit(tmp_path, 3, first, folder="short") == 2  # saves nothing
    starts(_restarted(1))
    assert _fit(tmp_path, 6, first) == 2
    starts(_restarted(2))
    assert _fit(tmp_path, 8, first) == 6


def test_another_ckpt_path_than_at_first_is_the_programs_choice(
    starts: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _fit(tmp_path, 2, folder="elsewhere")
    other = tmp_path / "elsewhere" / "epoch=0-step=2.ckpt"
    starts(JOB)
    assert _fit(tmp_path, 4) == 0
    starts(_restarted(1))
    assert _fit(tmp_path, 6, other) == 2
    assert f"it goes on from ckpt_path='{other}'" in capfd.readouterr().err
    starts(_restarted(2))
    assert _fit(tmp_path, 8, other) == 6
    starts(_restarted(3))
    own = tmp_path / "checkpoints" / "epoch=0-step=6.ckpt"
    assert _fit(tmp_path, 10, own) == 8


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_checkpoint_that_is_cut_short_is_left_out(starts: Any, tmp_path: Path) -> None:
    starts(JOB)
    _fit(tmp_path)
    newest = tmp_path / "checkpoints" / "epoch=0-step=4.ckpt"
    newest.write_bytes(newest.read_bytes()[:1000])
    starts(_restarted())
    with pytest.warns(UserWarning, match=r"step=4\.ckpt is cut short or damaged: 1,000 bytes of"):
        assert _fit(tmp_path) == 2


def test_what_is_damaged_is_found_by_loading_and_the_jobs_own_one_before_is_taken(
    starts: Any, tmp_path: Path
) -> None:
    starts(JOB)
    _fit(tmp_path, 2, folder="version_0")
    starts(_restarted(1))
    _fit(tmp_path, 5, folder="version_1")
    _flip(tmp_path / "version_1" / "epoch=0-step=4.ckpt")
    starts(_restarted(2))
    before = (
        rf"step=4\.ckpt is damaged(?s:.*)goes on from {tmp_path}/version_0/epoch=0-step=2\.ckpt"
    )
    with pytest.warns(UserWarning, match=before):
        assert _fit(tmp_path, 7, folder="version_2") == 2


def test_with_nothing_valid_it_begins_as_at_first(starts: Any, tmp_path: Path) -> None:
    _fit(tmp_path, 2, folder="pretrained")
    first = tmp_path / "pretrained" / "epoch=0-step=2.ckpt"
    for ckpt_path, begin in ((None, 0), (first, 2)):
        starts(JOB | {"TORCHELASTIC_RUN_ID": f"from {begin}"})
        root = tmp_path / f"from {begin}"
        _fit(root, 5, ckpt_path)
        for each in (root / "checkpoints").iterdir():
            _flip(each)
        starts(_restarted() | {"TORCHELASTIC_RUN_ID": f"from {begin}"})
        with pytest.warns(UserWarning, match=r"is damaged(?s:.*) instead") as warned:
            assert _fit(root, 6, ckpt_path) == begin
        last = "begins anew" if ckpt_path is None else f"goes on from {ckpt_path}"
        said = [str(each.message).rpartition("\n")[2] for each in warned]
        *_, final = (each for each in said if each.startswith("The fit"))
        assert final == f"The fit {last} instead."


def test_with_nothing_valid_at_all_it_says_so(starts: Any, tmp_path: Path) -> None:
    _fit(tmp_path, 2, folder="pretrained")
    first = tmp_path / "pretrained" / "epoch=0-step=2.ckpt"
    starts(JOB)
    _fit(tmp_path, 5, first)
    for each in (first, *(tmp_path / "checkpoints").iterdir()):
        _flip(each)
    starts(_restarted())
    with pytest.warns(UserWarning, match="instead"), pytest.raises(DamagedCheckpointError) as error:
        _fit(tmp_path, 6, first)
    assert "pretrained/epoch=0-step=2.ckpt is damaged" in str(error.value)
    assert "all that this job has saved, and what it began with, is damaged" in str(error.value)


def test_weights_alone_do_not_count(
    starts: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    starts(JOB)
    saves = ModelCheckpoint(tmp_path / "weights", every_n_train_steps=2, save_weights_only=True)
    _fit(tmp_path, 3, saves=saves)
    starts(_restarted())
    assert _fit(tmp_path) == 0
    assert "started this again; nothing that it saved is known" in capfd.readouterr().err


def test_each_fit_of_a_program_goes_on_from_its_own(starts: Any, tmp_path: Path) -> None:
    class Other(TinyModule):
        """A second model."""

    starts(JOB)
    _fit(tmp_path, 8, folder="first")
    _fit(tmp_path, 4, folder="second")
    _fit(tmp_path, 2, model=Other(), folder="third")
    starts(_restarted())
    assert _fit(tmp_path, 10, folder="first") == 8
    assert _fit(tmp_path, 6, folder="second") == 4
    assert _fit(tmp_path, 4, model=Other(), folder="third") == 2


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks")
def test_a_job_that_slurm_requeues_goes_on_from_its_newest_and_not_from_an_older_hpc_one(
    starts: Any, tmp_path: Path
) -> None:
    class Signalled(ModelCheckpoint):
        """Saves what Lightning saves when SLURM is about to requeue."""

        def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            if trainer.global_step == 3:
                trainer.save_checkpoint(
                    trainer._checkpoint_connector.hpc_save_path(str(trainer.default_root_dir))
                )

    job = {"SLURM_JOB_ID": "17", "SLURM_NTASKS": "1", "SLURM_JOB_NAME": "train"}
    job |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    starts(job)
    _fit(tmp_path, 3, saves=Signalled(every_n_epochs=0))
    starts(job | {"SLURM_RESTART_COUNT": "1"})
    assert _fit(tmp_path, 6) == 3
    starts(job | {"SLURM_RESTART_COUNT": "2"})
    assert _fit(tmp_path, 8) == 6


def test_it_can_be_switched_off(
    starts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts(JOB)
    _fit(tmp_path)
    starts(_restarted())
    monkeypatch.setenv("LIGHTNING_GAUDI_RELIABILITY", "auto_resume=off")
    assert _fit(tmp_path) == 0


def test_a_record_that_cannot_be_used_is_said_and_stops_nothing(
    starts: Any, tmp_path: Path
) -> None:
    starts(JOB)
    (tmp_path / FOLDER).write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match=r"json cannot be used .* may begin anew"):
        assert _fit(tmp_path) == 0


def test_a_cpu_fit_is_left_alone(starts: Any, tmp_path: Path) -> None:
    starts(JOB)
    _fit(tmp_path, accelerator="cpu")
    assert not (tmp_path / FOLDER).exists()


def _go_on(rank: int, folder: Path, seen_after_s: float | None) -> None:
    """Goes on from a checkpoint that rank 1 sees late, or never: each has a path of its own."""
    path = folder / f"of rank {rank}.ckpt"
    if rank == 0:
        path.touch()
    elif seen_after_s is not None:
        threading.Timer(seen_after_s, path.touch).start()
    start = time.monotonic()
    if seen_after_s is not None:
        resuming._check_shared(path)
        return
    with pytest.raises(MisconfigurationException, match=r"on the disk of rank 1 \(.*other ranks"):
        resuming._check_shared(path)
    assert time.monotonic() - start < 60, "one message within a minute"


def test_a_checkpoint_that_a_rank_sees_late_is_waited_for(tmp_path: Path) -> None:
    run_ranks(_go_on, tmp_path, tmp_path, 1.0)


def test_a_checkpoint_that_a_rank_never_sees_is_named_on_all_ranks(tmp_path: Path) -> None:
    run_ranks(_go_on, tmp_path, tmp_path, None)
