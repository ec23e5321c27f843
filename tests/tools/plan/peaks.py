"""python -m tests.tools.plan.peaks [WORD ...]: rows of a table of the documents, as measured.

That of reference/plans-and-runs. Of all runs, or of those that have all words in their names.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from lightning_gaudi.tools.plan.batches import LOOKED_AT
from lightning_gaudi.tools.plan.request import Request
from tests.tools.plan.rehearsing import MEASURED, measured_peak, planned_peak, rehearse

ROOT = Path(__file__).parents[3]

_PARALLEL = "lightning.pytorch.strategies.ModelParallelStrategy"
STRATEGIES = {
    "one card": ("auto",),
    "DDP": ("ddp",),
    "ZeRO-2": ("deepspeed_stage_2",),
    "ZeRO-3": ("deepspeed_stage_3",),
    "FSDP2": (_PARALLEL, "data_parallel_size=2", "tensor_parallel_size=1"),
    "tensor parallel": (_PARALLEL, "data_parallel_size=1", "tensor_parallel_size=2"),
}
"""All but the first on two cards."""

_NO_TEXTS = ("--data.num_generated=0",)
"""None are written in an evaluation, which takes long."""
_UNPACKED = ("--data.max_sequences_per_pack=1", "--data.batch_size=32")
_ONE_SHAPE = (*_UNPACKED, "--data.num_buckets=1")
_T5 = (*_NO_TEXTS, *_ONE_SHAPE)
_PROMPTS = ("--data.max_prompts=24", "--data.batch_size=8", "--data.prompt_tokens=40")
_LENGTHS = (5, 5, 20, 45)
_TEXTS = ", ".join(f'"{"word " * length}"' for length in _LENGTHS * 6)
_BUCKETED = (*_PROMPTS[:2], f"--data.prompts=[{_TEXTS}]")
_BERT_BASE = ("--model.hidden_size=768", "--model.num_layers=12", "--model.num_heads=12")
_BLOOM_BASE = (*_BERT_BASE, "--data.batch_size=4")
_T5_BASE = (
    *("--model.d_model=768", "--model.d_kv=64", "--model.d_ff=3072"),
    *("--model.num_layers=12", "--model.num_heads=12", "--data.batch_size=4"),
)
_SAVES_NOTHING = ("--trainer.callbacks=null", "--trainer.enable_checkpointing=false")


class Run(NamedTuple):
    """Of a recipe, with its configuration `simulated`."""

    recipe: str
    strategy: str = "one card"
    overrides: tuple[str, ...] = ()
    checkpointing: bool = False
    subcommand: str = "fit"
    num_steps: int = 3
    """So many meet the batch that is planned with, where all have one shape."""
    note: str = ""
    """What else sets it apart."""
    is_large: bool = False
    """Of base size: it takes gigabytes and minutes, and is left to this program."""

    @property
    def name(self) -> str:
        """As the table has it."""
        told = {"base size": self.is_large, "checkpointing": self.checkpointing}
        told["predict"] = self.subcommand == "predict"
        told[self.note] = bool(self.note)
        return ", ".join((self.recipe, *(each for each, is_so in told.items() if is_so)))

    @property
    def num_cards(self) -> int:
        """That train together."""
        return 1 if self.strategy == "one card" else 2

    @property
    def command(self) -> list[str]:
        """What runs it, and prints its peaks."""
        name, *more = STRATEGIES[self.strategy]
        settings = [f"strategy={name}", *(f"strategy.{each}" for each in more), "logger=false"]
        settings.append(f"devices={self.num_cards}")
        if self.subcommand == "fit":
            settings += [f"max_steps={self.num_steps}", f"val_check_interval={self.num_steps}"]
            settings += ["check_val_every_n_epoch=null", "limit_val_batches=3"]
        given = [*self.overrides, *(f"--trainer.{each}" for each in settings)]
        given += ["--model.gradient_checkpointing=true"] if self.checkpointing else []
        given += _SAVES_NOTHING if self.subcommand == "fit" else ()
        return [*MEASURED, self.recipe, self.subcommand, "--config=simulated", *given]


RUNS = (
    Run("mrpc", note="packed"),
    Run("mrpc", overrides=_UNPACKED, num_steps=LOOKED_AT),
    Run("t5_summarization", overrides=_NO_TEXTS, note="packed"),
    Run("t5_summarization", overrides=(*_NO_TEXTS, *_UNPACKED), num_steps=LOOKED_AT),
    Run(
        "t5_summarization",
        overrides=(*_NO_TEXTS, *_UNPACKED),
        checkpointing=True,
        num_steps=LOOKED_AT,
    ),
    Run("bert_pretraining", checkpointing=True),
    Run("bert_pretraining", "DDP"),
    Run("mrpc", "DDP", _ONE_SHAPE),
    Run("t5_summarization", "DDP", _T5),
    Run("text_generation"),
    Run("text_generation", "DDP"),
    Run("text_to_image", "DDP"),
    Run("mrpc", "ZeRO-2", _ONE_SHAPE),
    Run("bert_pretraining", "ZeRO-2"),
    Run("t5_summarization", "ZeRO-2", _T5),
    Run("text_generation", "ZeRO-2"),
    Run("text_to_image", "ZeRO-2"),
    Run("mrpc", "ZeRO-3", _ONE_SHAPE),
    Run("bert_pretraining", "ZeRO-3"),
    Run("text_generation", "ZeRO-3"),
    Run("t5_summarization", "ZeRO-3", _T5),
    Run("t5_summarization", "ZeRO-3", _T5, checkpointing=True),
    Run("text_to_image", "ZeRO-3"),
    Run("t5_summarization", "FSDP2", _T5),
    Run("t5_summarization", "FSDP2", _T5, checkpointing=True),
    Run("t5_summarization", "tensor parallel", _T5),
    Run("t5_summarization", "tensor parallel", _T5, checkpointing=True),
    Run("text_to_image"),
    Run("text_to_image", overrides=("--model.engine=none",), subcommand="predict"),
    Run(
        "text_generation", overrides=(*_PROMPTS, "--data.prompt_buckets=[64]"), subcommand="predict"
    ),
    Run(
        "text_generation",
        "tensor parallel",
        (*_PROMPTS, "--data.prompt_buckets=[64]"),
        subcommand="predict",
    ),
    Run("text_generation", overrides=_BUCKETED, subcommand="predict", note="several buckets"),
    Run("mrpc", overrides=(*_ONE_SHAPE, *_BERT_BASE, "--data.batch_size=4"), is_large=True),
    Run("bert_pretraining", overrides=(*_BERT_BASE, "--data.batch_size=2"), is_large=True),
    Run(
        "bert_pretraining",
        overrides=(*_BERT_BASE, "--data.batch_size=2"),
        checkpointing=True,
        is_large=True,
    ),
    Run("bert_pretraining", "DDP", (*_BERT_BASE, "--data.batch_size=2"), is_large=True),
    Run("text_generation", overrides=_BLOOM_BASE, is_large=True),
    Run("text_generation", "DDP", _BLOOM_BASE, is_large=True),
    Run("t5_summarization", overrides=(*_T5, *_T5_BASE), is_large=True),
    Run("t5_summarization", overrides=(*_T5, *_T5_BASE), checkpointing=True, is_large=True),
)
EXAMPLES = ("vae", "gan", "image_classifier", "multi_loader", "contrastive")


def of_recipe(run: Run, folder: Path) -> tuple[int, int]:
    """The planned peak of the first card, and the measured one."""
    planned = rehearse(folder, run.command, Request(devices=run.num_cards))
    return planned_peak(planned), measured_peak(folder, run.command, run.num_cards)


def of_example(name: str, folder: Path) -> tuple[int, int]:
    """Likewise; the program is run for an epoch."""
    command = [*MEASURED, str(ROOT / "examples" / f"{name}.py")]
    planned = rehearse(folder, command, Request())
    return planned_peak(planned), measured_peak(folder, [*command, "--max_epochs=1"], 1)


def main(words: Iterable[str]) -> None:
    """Print the rows."""
    os.environ.setdefault("LIGHTNING_GAUDI_COMPILE", "none")
    cases = [(run.name, run.strategy, of_recipe, run) for run in RUNS]
    cases += [(f"examples/{name}.py", "one card", of_example, name) for name in EXAMPLES]
    for name, strategy, measure, given in cases:
        if not all(word in f"{name}, {strategy}" for word in words):
            continue
        with tempfile.TemporaryDirectory() as folder:
            planned, measured = measure(given, Path(folder))
        difference = round(100 * (planned / measured - 1), 2) + 0.0  # no negative zero
        columns = (name, strategy, f"{planned:,}", f"{measured:,}", f"{difference:.2f} %")
        print(f"| {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
