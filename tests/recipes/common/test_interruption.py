"""A fit of a recipe that ends early keeps its state, says how to go on, and goes on to the bit."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest
import torch

from tests.helpers.forked import fork_python
from tests.helpers.process import run
from tests.helpers.recipes import ROOT

ARTICLES = ROOT.parent / "tests" / "fixtures" / "cnn_dailymail"
NUM_STEPS, ENDS_AT = 9, 5


def _arguments(path: Path, devices: int = 1) -> list[str]:
    logger = "--trainer.logger=lightning.pytorch.loggers.CSVLogger"
    return [
        "fit",
        "--config={}",
        *("--data.source=path", f"--data.path={ARTICLES}", "--data.batch_size=2"),
        *("--data.vocab_size=300", "--data.max_target_length=16", "--data.num_generated=0"),
        *("--trainer.accelerator=hpu", f"--trainer.devices={devices}"),
        *(f"--trainer.max_steps={NUM_STEPS}", "--trainer.log_every_n_steps=2"),
        *("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"),
        *(logger, f"--trainer.logger.save_dir={path}", f"--trainer.default_root_dir={path}"),
    ]


def _ends(by: str, rank: int = 0) -> list[str]:
    callback = "--trainer.callbacks+=tests.helpers.recipes.EndAt"
    settings = {"step": ENDS_AT, "by": by, "rank": rank}
    return [callback, *(f"--trainer.callbacks.{name}={value}" for name, value in settings.items())]


def _run(*commands: list[str], env: dict[str, str] | None = None):
    """Run commands one after the other in a process; their statuses are printed."""
    return fork_python(
        f"""
        from recipes.t5_summarization.__main__ import main

        for arguments in {commands!r}:
            try:
                main(arguments)
                print("status", 0)
            except SystemExit as error:
                print("status", error.code)
            except RuntimeError as error:
                print("status", error)
        """,
        cwd=ROOT.parent,
        timeout=240,
        env=env,
    )


def _losses(folder: Path, version: int) -> dict[int, str]:
    (path,) = folder.glob(f"*/version_{version}/metrics.csv")
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row.get("train/summary_loss")]
    return {int(row["step"]) + 1: row["train/summary_loss"] for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("by", "status", "said", "more"),
    [
        ("SIGINT", "130", "by Ctrl-C", []),
        pytest.param("SIGTERM", "143", "by SIGTERM", [], marks=pytest.mark.slow),
        # A validation is due after that step: it is broken off.
        pytest.param(
            *("SIGINT", "130", "by Ctrl-C", [f"--trainer.val_check_interval={ENDS_AT}"]),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["ctrl-c", "sigterm", "validation"],
)
def test_a_signal_leaves_a_state_that_goes_on_to_the_bit(by, status, said, more, tmp_path):
    arguments = [*_arguments(tmp_path), *more]
    checkpoint = tmp_path / "lightning_logs/version_1/checkpoints"
    resumed = [*arguments, "--ckpt_path", str(checkpoint / "last.ckpt")]
    result = _run(arguments, [*arguments, *_ends(by)], resumed)
    statuses = [line for line in result.stdout.splitlines() if line.startswith("status")]
    assert statuses == ["status 0", f"status {status}", "status 0"]
    assert f"ended early after {ENDS_AT} steps" in result.stdout
    assert said in result.stdout
    assert f"{checkpoint}/last.ckpt has its state. To go on:" in result.stdout
    assert f"--trainer.callbacks.rank=0 --ckpt_path {checkpoint}/last.ckpt" in result.stdout
    whole, part, rest = (_losses(tmp_path, version) for version in range(3))
    assert list(whole) == [2, 4, 6, 8]
    assert {**part, **rest} == whole
    assert list(rest) == [6, 8]  # of the interval of step 6, a half is from before
    report = (checkpoint.parent / "report.html").read_text()
    assert 'class="state early"' in report
    finished = tmp_path / "lightning_logs/version_2"
    assert (finished / "checkpoints" / "last.ckpt").exists()
    assert 'class="state early"' not in (finished / "report.html").read_text()


@pytest.mark.slow
def test_an_error_leaves_the_state_before_its_step(tmp_path):
    result = _run([*_arguments(tmp_path), *_ends("error")])
    assert "status rank 0 fails" in result.stdout
    assert f"The fit ended early, after step {ENDS_AT - 1}." in result.stdout
    assert "has its state" in result.stdout
    assert "by RuntimeError: rank 0 fails" in result.stdout
    assert list(tmp_path.rglob("last.ckpt"))


@pytest.mark.slow
def test_without_checkpoints_nothing_is_kept(tmp_path):
    off = ["--trainer.enable_checkpointing=false"]
    result = _run([*_arguments(tmp_path), *off, *_ends("SIGINT")])
    assert "status 130" in result.stdout
    assert "No checkpoint was saved." in result.stdout
    assert not list(tmp_path.rglob("*.ckpt"))


def _on_two_cards(path: Path, *more: str):
    module = [sys.executable, "-m", "recipes.t5_summarization"]  # started again for each rank
    command = [*module, *_arguments(path, devices=2), *more]
    env = {"LIGHTNING_GAUDI_SIMULATE": "2"}
    return run(command, cwd=ROOT.parent, timeout=240, check=False, env=env)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_two_cards_end_before_the_same_step_and_go_on_to_the_bit(rank, tmp_path):
    folder = tmp_path / "lightning_logs" / "version_1"
    assert _on_two_cards(tmp_path).returncode == 0
    part = _on_two_cards(tmp_path, *_ends("SIGINT", rank))
    assert part.returncode == (130 if rank == 0 else 143), part.stderr[-2000:]
    assert "has its state" in part.stdout
    assert "2 x GAUDI2" in (folder / "report.html").read_text()
    last = folder / "checkpoints" / "last.ckpt"
    assert _on_two_cards(tmp_path, "--ckpt_path", str(last)).returncode == 0
    whole, part, rest = (_losses(tmp_path, version) for version in range(3))
    assert {**part, **rest} == whole
    assert len(rest) < len(whole)


@pytest.mark.slow
def test_where_one_of_two_cards_fails_both_end_and_nothing_is_torn(tmp_path):
    result = _on_two_cards(tmp_path, *_ends("error", rank=1))
    assert result.returncode not in (0, 130)
    assert "rank 1 fails" in result.stdout + result.stderr
    saved = [torch.load(path, weights_only=True) for path in tmp_path.rglob("*.ckpt")]
    assert [each["global_step"] for each in saved] == [4, 4]  # the end of the epoch, on both cards
