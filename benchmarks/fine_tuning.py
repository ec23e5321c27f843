"""Compares the recipe llm_finetuning with trl's SFTTrainer: tokens a second of LoRA on one card.

Both train the same small Llama on the same conversations, on a simulated card in eager mode. Each
compiles what it does by default: the recipe its step, trl nothing. Launches are counts, the same on
every machine. Times are those of a CPU, where a launch costs less than on a Gaudi.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import datasets
import torch
import transformers
import trl
from lightning.pytorch.callbacks import Callback
from peft import LoraConfig

import recipes.llm_finetuning.__main__ as recipe
from benchmarks.harness.interleaved import Effort, in_turns
from benchmarks.harness.rows import Row, ratio
from lightning_gaudi.simulator import statistics
from recipes.llm_finetuning.data import LlmData
from recipes.llm_finetuning.embedded import embedded_conversations
from recipes.llm_finetuning.module import LlmFinetuning

NUM_WARMUP_STEPS, NUM_STEPS, NUM_ROUNDS = 4, 24, 5
BATCH_SIZE, LENGTH = 8, 256
LEARNING_RATE, RANK, ALPHA = 5e-3, 16, 32
_OURS, _PACKED, _PADDED = "the recipe", "trl, packed", "trl, padded"


@dataclass
class Watch:
    """Counts tokens without padding, launches and seconds of the steps after the warm-up."""

    num_begun: int = 0
    num_tokens: int = 0
    start: tuple[float, int] = (0.0, 0)
    end: tuple[float, int] = (0.0, 0)

    def begins(self) -> None:
        """Notes that a step begins."""
        if self.num_begun == NUM_WARMUP_STEPS:
            self.start = self._now()
        self.num_begun += 1

    def counts(self, num_tokens: int) -> None:
        """Adds the tokens of the step that has begun."""
        if self.num_begun > NUM_WARMUP_STEPS:
            self.num_tokens += num_tokens

    def ends(self) -> None:
        """Notes that all steps are done."""
        self.end = self._now()

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second, without padding."""
        return self.num_tokens / (self.end[0] - self.start[0])

    @property
    def launches_per_step(self) -> float:
        """Launches of the card in a step."""
        return (self.end[1] - self.start[1]) / (self.num_begun - NUM_WARMUP_STEPS)

    def _now(self) -> tuple[float, int]:
        torch.hpu.synchronize()
        return perf_counter(), statistics.launches()


def measure(effort: Effort) -> list[Row]:
    """Measures trl with packed and with padded rows, in turns with the recipe."""
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        _save_base(Path(folder))
        sides: dict[str, Callable[[str], Watch]] = {
            _OURS: _by_recipe,
            _PACKED: lambda base: _by_trl(base, is_packed=True),
            _PADDED: lambda base: _by_trl(base, is_packed=False),
        }
        num_rounds = effort.rounds(NUM_ROUNDS)
        found = in_turns(tuple(sides), num_rounds, lambda name: sides[name](folder))
    ours, *theirs = (found[name] for name in sides)
    rows = []
    for name, watches, target in zip((_PACKED, _PADDED), theirs, (1.0, 2.0), strict=True):
        speeds = [[each.tokens_per_s for each in of] for of in (ours, watches)]
        told = " against ".join(f"{median(each):,.0f}" for each in speeds)
        title = f"real tokens a second, times those of {name}"
        rows.append(ratio(title, *speeds, limit=target, is_floor=True, detail=told))
    launches = [median(each.launches_per_step for each in of) for of in (ours, *theirs)]
    told = ", ".join(f"{count:,.0f} {name}" for name, count in zip(sides, launches, strict=True))
    most = launches[1] / 2
    rows.append(Row("launches", launches[0], "launches a step", limit=most, detail=told))
    return rows


def _save_base(folder: Path) -> None:
    """Saves the model and the tokenizer with which all sides begin."""
    data = LlmData()
    tokenizer = data.get_tokenizer()
    torch.manual_seed(0)
    LlmFinetuning(vocab_size=len(tokenizer)).model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class _Told(Callback):
    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.watch.begins()
        self.watch.counts(batch["num_tokens"])

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self.watch.ends()


def _by_recipe(base: str) -> Watch:
    watch = Watch()
    config = Path(recipe.__file__).with_name("simulated_lora.yaml")
    cli = recipe.run(
        [
            *("--config", str(config), f"--model.name={base}", f"--data.tokenizer={base}"),
            *(f"--data.batch_size={BATCH_SIZE}", f"--data.pack_length={LENGTH}"),
            *("--trainer.logger=false", "--trainer.callbacks=null"),
            *("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"),
            *(f"--trainer.default_root_dir={base}", "--trainer.limit_val_batches=0"),
            f"--trainer.max_steps={NUM_WARMUP_STEPS + NUM_STEPS}",
        ],
        run=False,
    )
    cli.trainer.callbacks.append(_Told(watch))
    cli.trainer.fit(cli.model, cli.datamodule)
    return watch


class _Counting(transformers.TrainerCallback):
    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.watch.begins()

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.watch.ends()


class _Trainer(trl.SFTTrainer):
    """Counts the tokens of each batch before it goes to the card."""

    watch: Watch

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        mask = inputs.get("attention_mask")  # a packed batch has none
        self.watch.counts(int(inputs["input_ids"].numel() if mask is None else mask.sum()))
        found: dict[str, Any] = super()._prepare_inputs(inputs)
        return found


def _by_trl(base: str, *, is_packed: bool) -> Watch:
    rows = [
        {"messages": [each._asdict() for each in row.messages]}
        for row in embedded_conversations("train", 0)
    ]
    settings = trl.SFTConfig(
        output_dir=f"{base}/trl",
        max_steps=NUM_WARMUP_STEPS + NUM_STEPS,
        per_device_train_batch_size=BATCH_SIZE,
        packing=is_packed,
        max_length=LENGTH,
        learning_rate=LEARNING_RATE,
        gradient_checkpointing=False,
        bf16=False,
        logging_steps=50,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = _Trainer(
        transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        args=settings,
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=transformers.AutoTokenizer.from_pretrained(base),
        peft_config=LoraConfig(
            r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"
        ),
    )
    if settings.device.type != "hpu":
        raise RuntimeError(f"trl chose {settings.device}, not the HPU.")
    trainer.watch = Watch()
    trainer.add_callback(_Counting(trainer.watch))
    trainer.train()
    return trainer.watch
