"""What is planned for recipes and examples is what a card that computes takes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from lightning_gaudi.planning.batches import LOOKED_AT
from lightning_gaudi.planning.case import Case
from tests.planning.rehearsing import MEASURED, measured_peak, planned_peak, rehearse

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


class Run(NamedTuple):
    """Of a recipe, with its configuration `simulated`."""

    recipe: str
    strategy: str = "auto"
    num_cards: int = 1
    overrides: tuple[str, ...] = ()
    num_steps: int = 4
    """So many meet the batch that is planned with, where all have one shape."""

    @property
    def name(self) -> str:
        """As tests are told apart, and as the table in docs/planning.md has it."""
        kinds = {"checkpointing": CHECKPOINTING, "base size": BASE.get(self.recipe, ("-",))}
        told = [name for name, given in kinds.items() if {*given} <= {*self.overrides}]
        return ", ".join((self.recipe, *told, f"{self.strategy} on {self.num_cards}"))


TEXTS = ("--data.num_generated=0",)
"""That none are written, which takes long."""
ONE_SHAPE = ("--data.num_buckets=1",)
CHECKPOINTING = ("--model.gradient_checkpointing=true",)
_BERT = ("--model.hidden_size=768", "--model.num_layers=12", "--model.num_heads=12")
BASE = {
    "mrpc": (*_BERT, "--data.batch_size=4"),
    "bert_pretraining": (*_BERT, "--data.batch_size=2"),
    "t5_summarization": (
        *("--model.d_model=768", "--model.d_kv=64", "--model.d_ff=3072"),
        *("--model.num_layers=12", "--model.num_heads=12", "--data.batch_size=4"),
    ),
}
"""The sizes of BERT-base and T5-base, but for their vocabularies."""
PARALLEL = "lightning.pytorch.strategies.ModelParallelStrategy"
STRATEGIES = {
    "FSDP2": (PARALLEL, "data_parallel_size=2", "tensor_parallel_size=1"),
    "tensor parallel": (PARALLEL, "data_parallel_size=1", "tensor_parallel_size=2"),
}
"""Those of several settings."""
T5 = (*TEXTS, *ONE_SHAPE)
FITS = (
    Run("mrpc", num_steps=LOOKED_AT),
    Run("t5_summarization", overrides=TEXTS, num_steps=LOOKED_AT),
    Run("t5_summarization", overrides=(*TEXTS, *CHECKPOINTING), num_steps=LOOKED_AT),
    Run("bert_pretraining", "ddp", 2),
    Run("text_generation", "deepspeed_stage_2", 2),
    Run("mrpc", "deepspeed_stage_3", 2, ONE_SHAPE),
    Run("bert_pretraining", "deepspeed_stage_3", 2),
    Run("text_generation", "deepspeed_stage_3", 2),
    Run("t5_summarization", "deepspeed_stage_3", 2, T5),
    Run("t5_summarization", "FSDP2", 2, T5),
    Run("t5_summarization", "FSDP2", 2, (*T5, *CHECKPOINTING)),
    Run("t5_summarization", "tensor parallel", 2, T5),
    Run("t5_summarization", "tensor parallel", 2, (*T5, *CHECKPOINTING)),
    Run("mrpc", overrides=(*BASE["mrpc"], *ONE_SHAPE)),
)


@pytest.mark.parametrize("given", FITS, ids=lambda run: run.name)
def test_recipes_take_what_is_planned(given: Run, tmp_path: Path) -> None:
    name, *more = STRATEGIES.get(given.strategy, (given.strategy,))
    strategy = (f"strategy={name}", *(f"strategy.{each}" for each in more))
    steps = (f"max_steps={given.num_steps}", f"val_check_interval={given.num_steps}")
    steps = (*steps, "check_val_every_n_epoch=null", "limit_val_batches=3")
    settings = [f"--trainer.{each}" for each in (*strategy, *steps, f"devices={given.num_cards}")]
    command = [*MEASURED, given.recipe, "fit", "--config=simulated", *given.overrides, *settings]
    planned = planned_peak(rehearse(tmp_path, command, Case(devices=given.num_cards)))
    peak = measured_peak(tmp_path, command, given.num_cards)
    assert planned == pytest.approx(peak, rel=0.05)


EXAMPLES = ("vae", "gan", "image_classifier", "multi_loader", "contrastive")


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_take_what_is_planned(name: str, tmp_path: Path) -> None:
    command = [*MEASURED, str(ROOT / "examples" / f"{name}.py")]
    planned = planned_peak(rehearse(tmp_path, command, Case()))
    peak = measured_peak(tmp_path, [*command, "--max_epochs=1"], 1)
    assert planned == pytest.approx(peak, rel=0.05)
