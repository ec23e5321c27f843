"""What LightningCLI and the Trainer find wrong is a line; switches overrule a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning.pytorch.callbacks import ModelCheckpoint

from recipes.common.errors import UserError
from recipes.mrpc.__main__ import main, run
from recipes.t5_summarization.__main__ import main as t5
from tests.helpers.recipes import ROOT

CONFIG = ["--config", str(ROOT / "mrpc" / "simulated.yaml")]
ARTICLES = ROOT.parent / "tests" / "fixtures" / "cnn_dailymail"
PROGRAM = "python -m recipes.mrpc"


def _error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The line with which the command ends."""
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert all(not line.startswith(("usage", "Traceback")) for line in lines)
    return lines[-1]


@pytest.mark.slow_but("predict", "test")
@pytest.mark.parametrize("subcommand", ["fit", "validate", "test", "predict"])
def test_a_missing_checkpoint_is_one_line_before_anything_is_made(subcommand, capsys):
    # The data are made first, and would complain of their path.
    error = _error(capsys, subcommand, *CONFIG, "--data.source=path", "--ckpt_path", "no/such.ckpt")
    assert error.startswith(f"{PROGRAM}: error: --ckpt_path no/such.ckpt does not exist")


@pytest.mark.slow
def test_too_few_rows_for_a_step_are_told_in_the_names_of_settings(tmp_path, capsys):
    folder = f"--trainer.default_root_dir={tmp_path}"
    few = ("--data.batch_size=9000", "--trainer.accumulate_grad_batches=8")
    error = _error(capsys, "fit", *CONFIG, "--trainer.accelerator=cpu", folder, *few)
    expected = r"The data have [\d,]+ sample\(s\), but a step takes 72,000 \(batches of 9000 on 1 "
    expected += r"rank\(s\), 8 of each\)\. Use more rows, or set a smaller data\.batch_size"
    assert re.search(expected, error)


def test_variables_that_nobody_has_set_are_refused(monkeypatch):
    """As those of a file that the program cannot see before torch is imported."""
    monkeypatch.delenv("PT_HPU_RECIPE_CACHE_CONFIG", raising=False)
    message = r"environment\.PT_HPU_RECIPE_CACHE_CONFIG=x has not been set: that is done before"
    with pytest.raises(UserError, match=message):
        run([*CONFIG, "--environment.PT_HPU_RECIPE_CACHE_CONFIG=x"], run=False)


@pytest.mark.slow_but(
    "arguments3-\"data.batch_size\": Expected a <class 'int'>. Got value: x.",
    'arguments2-"model.vocab_size" must be given via "data.vocab_size".',
)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--data.batchsize=3"],
            "There is no setting data.batchsize. Did you mean data.batch_size?",
        ),
        (["--date.seed", "1"], "There is no setting date.seed. Did you mean data.seed?"),
        (["--model.vocab_size=3"], '"model.vocab_size" must be given via "data.vocab_size".'),
        (["--data.batch_size=x"], "\"data.batch_size\": Expected a <class 'int'>. Got value: x."),
        (["more"], "unrecognized arguments: more."),
        (
            ["--trainer.logger=CSVLogger", "--trainer.logger.save_dri=x"],
            "CSVLogger: Option 'save_dri' is not accepted. Did you mean save_dir?",
        ),
    ],
)
def test_a_wrong_word_is_a_line_with_the_nearest(arguments, message, capsys):
    error = _error(capsys, "fit", *CONFIG, *arguments)
    assert error.startswith(f"{PROGRAM} fit: error: ")
    assert message in error
    assert error.endswith(f"See: {PROGRAM} fit --help")


def _set(config: dict[str, Any], path: str, value: Any) -> None:
    *outer, name = path.split(".")
    for key in outer:
        config = config[int(key) if key.isdigit() else key]
    config[name] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "data.batchsize",
            3,
            r"no setting data.batchsize \(.*mine.yaml, line \d+\). Did you mean data.batch_size\?",
        ),
        ("dat", {"seed": 3}, r"no setting dat.seed \(.*, line \d+\). Did you mean data.seed\?"),
        (
            "trainer.callbacks.0.init_args",
            {"refreshrate": 3},
            r"Option 'refreshrate' is not accepted. Did you mean refresh_rate\?",
        ),
        (
            "trainer.callbacks.0.class_path",
            "lightning.pytorch.callbacks.TQDMProgresBar",
            r"has no attribute 'TQDMProgresBar'. Did you mean TQDMProgressBar\?",
        ),
    ],
)
def test_a_wrong_word_in_a_file_is_a_line_with_the_nearest(path, value, message, tmp_path, capsys):
    config = yaml.safe_load(Path(CONFIG[1]).read_text())
    _set(config, path, value)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config))
    error = _error(capsys, "fit", "--config", str(tmp_path / "mine.yaml"))
    assert re.search(message, error), error


def test_what_the_trainer_refuses_is_a_line(capsys):
    error = _error(capsys, "fit", *CONFIG, "--trainer.accelerator=hpuu")
    assert error.startswith(f"{PROGRAM}: error: You selected an invalid accelerator name")


def test_switches_overrule_the_callbacks_of_the_file():
    off = ["--trainer.enable_progress_bar=false", "--trainer.enable_checkpointing=false"]
    trainer = run([*CONFIG, *off], run=False).trainer
    assert trainer.progress_bar_callback is None
    assert not any(isinstance(each, ModelCheckpoint) for each in trainer.callbacks)
    assert any(type(each).__name__ == "TokenThroughput" for each in trainer.callbacks)
    kept = run(CONFIG, run=False).trainer
    assert kept.progress_bar_callback.refresh_rate == 10
    assert any(isinstance(each, ModelCheckpoint) for each in kept.callbacks)


def _small(tmp_path: Path, data: Path) -> list[str]:
    sizes = ["--data.vocab_size=300", "--data.max_target_length=16", "--data.num_generated=0"]
    quiet = ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]
    quiet += ["--trainer.logger=false", "--trainer.enable_checkpointing=false"]
    where = ["--data.source=path", f"--data.path={data}", f"--trainer.default_root_dir={tmp_path}"]
    return ["--config={}", *where, *sizes, *quiet, "--trainer.accelerator=cpu"]


def test_data_that_fit_cannot_use_is_a_line(tmp_path, capsys):
    (tmp_path / "train.csv").write_text((ARTICLES / "train.csv").read_text())
    with pytest.raises(SystemExit) as exit_info:
        t5(["fit", *_small(tmp_path, tmp_path), "--trainer.max_steps=1"])
    assert exit_info.value.code == 2
    *before, error = capsys.readouterr().err.splitlines()
    assert error.startswith(
        "python -m recipes.t5_summarization: error: data.source=path, data.path="
    )
    assert "split validation: there is no row" in error
    assert "Traceback (most recent call last):" not in before


@pytest.mark.filterwarnings("ignore:The 'val_dataloader' does not have many:UserWarning")
def test_scores_of_random_weights_are_warned_of(tmp_path):
    with pytest.warns(UserWarning, match="validate has no --ckpt_path, so it takes random weights"):
        t5(["validate", *_small(tmp_path, ARTICLES), "--trainer.limit_val_batches=1"])
