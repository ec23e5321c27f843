"""Has the sides of `recipe_throughput.py`: a recipe in Lightning's Trainer, and Hugging Face's.

Both train on the CPU in this process, with torch's threads, in float32. They log at the same
interval, without a logger, clip gradients to the same norm, and neither evaluate nor save.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import transformers
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from torch.utils.data import DataLoader

Batch = dict[str, Any]
Count = Callable[[Batch], int]
"""The tokens of a batch that are not padding."""

LOG_EVERY_N_STEPS = 10
MAX_GRAD_NORM = 1.0


@dataclass
class Clock:
    """Notes when each step ended, and how many tokens its batch had."""

    ends: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def step_ended(self) -> None:
        self.ends.append(perf_counter())

    def tokens_per_s(self, num_warmup_steps: int) -> float:
        """Returns tokens a second after the warm-up, with the time of loading."""
        first, last = num_warmup_steps - 1, len(self.ends) - 1
        # Batches are loaded ahead: there may be more counts than steps.
        return sum(self.tokens[first + 1 : last + 1]) / (self.ends[last] - self.ends[first])


@dataclass
class RecipeSide:
    """Trains a recipe's module on its data."""

    module: LightningModule
    data: LightningDataModule
    count: Count

    def loader(self) -> Any:
        return self.data.train_dataloader()

    def fit(self, num_warmup_steps: int, num_steps: int, epoch: int) -> float:
        """Train some steps at the beginning of an epoch; tokens a second after the warm-up."""
        clock = Clock()
        trainer = Trainer(
            accelerator="cpu",
            devices=1,
            max_steps=num_warmup_steps + num_steps,
            gradient_clip_val=MAX_GRAD_NORM,
            log_every_n_steps=LOG_EVERY_N_STEPS,
            callbacks=[_RecipeClock(clock, self.count)],
            limit_val_batches=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        # The order of the samples depends on the epoch: each round trains on other ones.
        trainer.fit_loop.epoch_progress.current.processed = epoch
        trainer.fit(self.module, self.data)
        return clock.tokens_per_s(num_warmup_steps)


@dataclass
class HuggingFaceSide:
    """Trains the same model on the same sequences by `transformers.Trainer`, with a stock collator.

    All other settings are the Trainer's defaults, even its optimizer.
    """

    model: transformers.PreTrainedModel
    rows: Sequence[dict[str, Any]]
    """Token ids and labels of each sample, without padding."""
    collator: Callable[[list[dict[str, Any]]], Any]
    batch_size: int
    count: Count

    def loader(self) -> DataLoader[Any]:
        with tempfile.TemporaryDirectory() as folder:
            return self._trainer(folder, Clock(), 1, seed=0).get_train_dataloader()

    def fit(self, num_warmup_steps: int, num_steps: int, epoch: int) -> float:
        """Train some steps at the beginning of an epoch; tokens a second after the warm-up."""
        clock = Clock()
        with tempfile.TemporaryDirectory() as folder:
            trainer = self._trainer(folder, clock, num_warmup_steps + num_steps, seed=epoch)
            trainer.train()
        return clock.tokens_per_s(num_warmup_steps)

    def _trainer(
        self, folder: str, clock: Clock, num_steps: int, seed: int
    ) -> transformers.Trainer:
        def collate(rows: list[dict[str, Any]]) -> Any:
            batch = self.collator(rows)
            clock.tokens.append(self.count(batch))
            return batch

        settings = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=self.batch_size,
            max_steps=num_steps,
            max_grad_norm=MAX_GRAD_NORM,
            logging_steps=LOG_EVERY_N_STEPS,
            seed=seed,  # of the order of the samples
            use_cpu=True,
            dataloader_pin_memory=False,  # there is no device to copy to
            report_to="none",
            save_strategy="no",
            remove_unused_columns=False,  # among them is the collator's special_tokens_mask
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(
            self.model,
            settings,
            data_collator=collate,
            train_dataset=self.rows,
            callbacks=[_HuggingFaceClock(clock)],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        return trainer


class _RecipeClock(Callback):
    def __init__(self, clock: Clock, count: Count) -> None:
        self.clock, self.count = clock, count

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.clock.tokens.append(self.count(batch))
        self.clock.step_ended()


class _HuggingFaceClock(transformers.TrainerCallback):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.clock.step_ended()
