"""What the simulated configurations promise: answers to questions that were held out."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

from recipes.common.export import export
from tests.helpers.recipes import quiet_cli


def _fit(path: Path, config: str, *arguments: str) -> Any:
    cli = quiet_cli("llm_finetuning", path, *arguments, config=config)
    cli.trainer.callbacks.append(ModelCheckpoint(path, filename="end", every_n_train_steps=100))
    cli.trainer.fit(cli.model, cli.datamodule)
    return cli


def _shares(path: Path, config: str, *arguments: str) -> dict[str, float]:
    """How many answers are exactly the expected ones, by task."""
    answers = path / "answers.jsonl"
    cli = quiet_cli(
        "llm_finetuning", path, *arguments, f"--model.predictions={answers}", config=config
    )
    cli.trainer.predict(cli.model, cli.datamodule, False, path / "end.ckpt")
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    total, right = Counter[str](), Counter[str]()
    for row in rows:
        total[row["task"]] += 1
        right[row["task"]] += row["is_exact"]
    assert total["digits"] == total["words"] == total["next"] == 100
    return {task: right[task] / total[task] for task in total}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What `simulated_base` learns, exported."""
    path = tmp_path_factory.mktemp("base")
    _fit(path, "simulated_base", "--trainer.limit_val_batches=0")
    export(path / "end.ckpt", path / "exported")
    return str(path / "exported")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_all_weights_learn_to_answer(seed: int, tmp_path: Path) -> None:
    seeds = (f"--seed_everything={seed}", f"--data.seed={seed}")
    cli = _fit(tmp_path, "simulated", *seeds)
    loss = cli.trainer.callback_metrics["val/loss"].item()
    assert loss < cli.datamodule.unigram_loss("validation") - 1.6
    assert _shares(tmp_path, "simulated", *seeds)["digits"] >= 0.8


@pytest.mark.slow
@pytest.mark.timeout(2000)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_adapters_learn_to_answer(seed: int, base: str, tmp_path: Path) -> None:
    seeds = (f"--seed_everything={seed}", f"--data.seed={seed}")
    named = (f"--model.name={base}", f"--data.tokenizer={base}")
    cli = _fit(tmp_path, "simulated_lora", *seeds, *named)
    loss = cli.trainer.callback_metrics["val/loss"].item()
    assert loss < cli.datamodule.unigram_loss("validation") - 1.2
    assert _shares(tmp_path, "simulated_lora", *seeds, *named)["digits"] >= 0.8
