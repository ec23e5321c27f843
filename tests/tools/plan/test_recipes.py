"""Recipes are planned as they are: what they would write is not, and weights need no files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM

from recipes.common.tokenization import train_byte_bpe
from tests.helpers.diffusion import save_pipeline
from tests.helpers.process import run

pytestmark = pytest.mark.slow


def _plan(folder: Path, *arguments: str) -> Any:
    command = [
        sys.executable,
        "-m",
        "lightning_gaudi.tools.command_line",
        "plan",
        "--json",
        "--no-changes",
    ]
    result = run([*command, "--cards", "gaudi2", *arguments], cwd=folder, timeout=280)
    assert not [*folder.glob("runs")], "a plan has written something"
    (found,) = json.loads(result.stdout)
    return found["rehearsed"]


def _recipe(name: str, command: str, config: str, *overrides: str) -> list[str]:
    program = [sys.executable, "-m", "lightning_gaudi.tools.command_line", "run", name, command]
    return ["--", *program, "--config", config, *overrides]


def test_a_recipe_is_trained_and_nothing_is_written(tmp_path: Path) -> None:
    found = _plan(tmp_path, *_recipe("mrpc", "fit", "simulated"))
    assert found["batch_size"] == 32
    categories = found["categories"]
    assert categories["optimizer state"] == pytest.approx(2 * categories["weights"], rel=0.05)


def test_texts_are_written_by_eight_cards_with_weights_that_nobody_has(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    config = BloomConfig(
        vocab_size=1024, hidden_size=512, n_layer=3, n_head=8, torch_dtype=torch.bfloat16
    )
    config.save_pretrained(folder)
    train_byte_bpe([["the quick brown fox jumps over the lazy dog"] * 9], 280).save_pretrained(
        folder
    )
    overrides = [f"--model.name={folder}", f"--data.tokenizer={folder}"]
    overrides += ["--data.prompt_buckets=[64]", "--model.max_new_tokens=4"]
    program = _recipe("text_generation", "predict", "published/bloomz_176b_8x", *overrides)
    found = _plan(tmp_path, "--devices", "8", *program)
    with torch.device("meta"):
        model = BloomForCausalLM(config)
    whole = sum(each.numel() * 2 for each in model.parameters())
    assert whole / 8 < found["categories"]["weights"] < whole / 8 * 1.05
    # What the cards keep of the words so far: keys and values, of a head each.
    assert found["peak_bytes"] > found["categories"]["weights"] + 3 * 2 * 64 * 64 * 2


def test_pictures_are_planned_without_one_and_with_weights_as_they_are_loaded(
    tmp_path: Path,
) -> None:
    overrides = [f"--model.name={save_pipeline('sd1', tmp_path / 'model')}"]
    overrides += ["--model.num_inference_steps=3", "--data.num_images_per_prompt=8"]
    found = _plan(tmp_path, *_recipe("text_to_image", "predict", "simulated", *overrides))
    weights = found["categories"]["weights"]
    assert weights > 0
    assert found["host"]["weights, as they are made"] == weights
    # Of painting all grows with the batch, the first one that compiles, too.
    assert found["growing_bytes"] >= max(found["peak_bytes"], found["setup_bytes"])
