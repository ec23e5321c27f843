"""What is planned for recipes and examples is what a card that computes takes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from lightning_gaudi.planning.batches import LOOKED_AT
from lightning_gaudi.planning.case import Case
from tests.planning.rehearsing import MEASURED, measured_peak, planned_peak, rehearse

ROOT = Path(__file__).parents[2]
STEPS = (f"max_steps={LOOKED_AT}", "limit_val_batches=3", f"val_check_interval={LOOKED_AT}")
STEPS = (*STEPS, "check_val_every_n_epoch=null")
"""Of a Trainer's settings, for a run that meets the batch that is planned with."""

pytestmark = pytest.mark.slow


class Run(NamedTuple):
    """Of a recipe, with its configuration `simulated`."""

    recipe: str
    num_cards: int = 1
    strategy: str = "auto"
    overrides: tuple[str, ...] = ()


NO_TEXTS = "--data.num_generated=0"
RUNS = (
    Run("mrpc"),
    Run("t5_summarization", overrides=(NO_TEXTS,)),
    Run("t5_summarization", overrides=(NO_TEXTS, "--model.gradient_checkpointing=true")),
    Run("bert_pretraining", 2, "ddp"),
    Run("text_generation", 2, "deepspeed_stage_2"),
)


@pytest.mark.parametrize("given", RUNS, ids=lambda run: "-".join(map(str, run[:3])))
def test_recipes_take_what_is_planned(given: Run, tmp_path: Path) -> None:
    command = [*MEASURED, given.recipe, "fit", "--config=simulated", *given.overrides]
    command.append(f"--trainer.strategy={given.strategy}")
    planned = planned_peak(rehearse(tmp_path, command, Case(devices=given.num_cards)))
    command += [f"--trainer.{each}" for each in (*STEPS, f"devices={given.num_cards}")]
    peak = measured_peak(tmp_path, command, given.num_cards)
    assert planned == pytest.approx(peak, rel=0.05)


EXAMPLES = ("vae", "gan", "image_classifier", "multi_loader", "contrastive")


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_take_what_is_planned(name: str, tmp_path: Path) -> None:
    command = [*MEASURED, str(ROOT / "examples" / f"{name}.py")]
    planned = planned_peak(rehearse(tmp_path, command, Case()))
    peak = measured_peak(tmp_path, [*command, "--max_epochs=1"], 1)
    assert planned == pytest.approx(peak, rel=0.05)
