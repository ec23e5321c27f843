"""Every flag of the Trainer may be turned off, or on, in every recipe."""

from __future__ import annotations

import importlib
import json
import shlex
from pathlib import Path

import pytest
import torch

from recipes.common.errors import UserError
from tests.helpers.recipes import ROOT

FIXTURES = ROOT.parent / "tests" / "fixtures"
RECIPES = ("bert_pretraining", "llm_finetuning", "mrpc", "t5_summarization", "text_generation")
TEXT = "The quick river follows the lazy engine. A silver letter builds the broken window.\n\n"
OFF = """
    --trainer.enable_progress_bar=false --trainer.enable_checkpointing=false
    --trainer.enable_model_summary=false --trainer.logger=false --trainer.log_every_n_steps=0
    --trainer.callbacks=null --trainer.limit_val_batches=0
"""
ALONE = """
    --trainer.enable_progress_bar=false
    --trainer.enable_checkpointing=false
    --trainer.enable_model_summary=false
    --trainer.logger=false
    --trainer.logger=null
    --trainer.log_every_n_steps=0
    --trainer.callbacks=null
    --trainer.limit_val_batches=0
    --trainer.limit_train_batches=0
    --trainer.num_sanity_val_steps=1
    --trainer.num_sanity_val_steps=-1
    --trainer.val_check_interval=1
    --trainer.check_val_every_n_epoch=2
    --trainer.fast_dev_run=true
    --trainer.fast_dev_run=2
    --trainer.detect_anomaly=true
    --trainer.profiler=simple
    --trainer.profiler=hpu
    --trainer.inference_mode=false
    --trainer.deterministic=warn
    --trainer.accumulate_grad_batches=2
    --trainer.gradient_clip_val=null
    --trainer.max_steps=0
    --trainer.max_epochs=0
    --trainer.max_time=00:00:00:00
    --trainer.barebones=true --trainer.logger=null --trainer.callbacks=null --trainer.enable_progress_bar=null --trainer.enable_model_summary=null --trainer.log_every_n_steps=null --trainer.num_sanity_val_steps=null
"""  # noqa: E501


def _small(recipe: str, path: Path) -> list[str]:
    articles = FIXTURES / "cnn_dailymail"
    folders = {"t5_summarization": articles, "text_generation": articles}
    questions = path / "questions.jsonl"
    rows = ({"prompt": f"What is {number}?", "completion": TEXT} for number in range(60))
    questions.write_text("\n".join(map(json.dumps, rows)))
    folders["llm_finetuning"] = questions
    folders["mrpc"] = FIXTURES / "mrpc" / "glue"
    text = path / "text.txt"
    text.write_text(TEXT * 60)
    sizes = {
        "bert_pretraining": "--data.max_seq_length=32 --data.max_predictions_per_seq=5 "
        "--data.validation_share=0.1 --data.vocab_size=90",
        "llm_finetuning": "--data.vocab_size=300 --data.validation_share=0.1 "
        "--data.prompt_buckets=[128] --model.max_new_tokens=4",
        "mrpc": "--data.vocab_size=300 --data.max_length=96",
        "t5_summarization": "--data.vocab_size=300 --data.max_target_length=16 "
        "--data.num_generated=2",
        "text_generation": "--data.columns.text=article --data.vocab_size=300 --data.block_size=16 "
        "--data.prompt_tokens=8 --model.max_new_tokens=4",
    }
    return [
        *("--config", str(ROOT / recipe / "simulated.yaml"), "--data.source=path"),
        *(f"--data.path={folders.get(recipe, text)}", *sizes[recipe].split()),
        *("--data.batch_size=2", "--trainer.max_steps=4", "--trainer.val_check_interval=2"),
        *("--trainer.check_val_every_n_epoch=null", "--trainer.limit_val_batches=1"),
        *("--trainer.log_every_n_steps=2", f"--trainer.default_root_dir={path}"),
        "--trainer.logger=lightning.pytorch.loggers.CSVLogger",
        f"--trainer.logger.save_dir={path}",
    ]


def _run(recipe: str, path: Path, monkeypatch: pytest.MonkeyPatch, command: str, flags: str):
    monkeypatch.chdir(path)
    run = importlib.import_module(f"recipes.{recipe}.__main__").run
    logger = ["--trainer.logger=lightning.pytorch.loggers.CSVLogger"]
    return run(
        [
            command,
            *_small(recipe, path)[:-1],
            *logger,
            _small(recipe, path)[-1],
            *shlex.split(flags),
        ]
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("recipe", RECIPES)
def test_all_that_can_be_off_is_off(recipe, tmp_path, monkeypatch, capsys):
    trainer = _run(recipe, tmp_path, monkeypatch, "fit", OFF).trainer
    assert trainer.global_step == 4
    assert not list(tmp_path.rglob("*.ckpt"))
    assert (tmp_path / "report.html").exists()
    # Of one step there is no curve, and no picture that could be named.
    assert ("report.png" in (tmp_path / "report.html").read_text()) == any(tmp_path.rglob("*.png"))
    assert "None" not in capsys.readouterr().out


def test_overfit_batches_is_refused_with_what_does_the_same(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"overfit_batches=1 gives .* Set trainer.limit_train"):
        _run("mrpc", tmp_path, monkeypatch, "fit", "--trainer.overfit_batches=1")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("flags", [line.strip() for line in ALONE.strip().splitlines()])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_flag_is_taken(recipe, flags, tmp_path, monkeypatch):
    # torch's own helpers for tests, which others have imported here, freeze what the Trainer sets.
    # They are in the module that torch.backends stands for, not in torch.backends.
    names = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(names, "__allow_nonbracketed_mutation_flag", True)
    _run(recipe, tmp_path, monkeypatch, "fit", flags)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("command", ["validate", "test", "predict"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_other_commands_take_them_too(recipe, command, tmp_path, monkeypatch, capsys):
    if recipe == "mrpc" and command == "test":
        pytest.skip("the fixtures have no labels for GLUE's test split, as published")
    _run(recipe, tmp_path, monkeypatch, command, OFF + "--trainer.limit_val_batches=1")
    if command != "predict":
        assert "NOT TRAINED: random weights" in capsys.readouterr().out
