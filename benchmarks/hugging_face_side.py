"""Trains by Hugging Face's Trainer, as one side of `trainer_overhead`.

It is a module of its own because of its imports. Optimizer, schedule and clipping are those of the
other sides, and nothing is logged or saved. All other settings are the Trainer's defaults.
"""

from __future__ import annotations

import tempfile
from typing import Any

import transformers

from benchmarks.trainer_sides import LEARNING_RATE, Stopwatch, Work


class _Timing(transformers.TrainerCallback):
    def __init__(self, stopwatch: Stopwatch) -> None:
        self.stopwatch = stopwatch

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stopwatch.begins(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stopwatch.ends(state.global_step - 1)


def hugging_face(work: Work, device: str) -> float:
    """Trains on the HPU, which the Trainer finds by itself, or the CPU; returns seconds a step."""
    transformers.logging.set_verbosity_error()
    stopwatch = Stopwatch(work)
    with tempfile.TemporaryDirectory() as folder:
        settings = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=work.batch_size,
            num_train_epochs=1,
            optim="adamw_torch",
            learning_rate=LEARNING_RATE,
            weight_decay=0.01,  # that of torch's AdamW
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            use_cpu=device == "cpu",
            dataloader_pin_memory=False,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        if settings.device.type != device:
            raise RuntimeError(f"Hugging Face's Trainer chose {settings.device}, not {device}.")
        trainer = transformers.Trainer(
            work.model(),
            settings,
            train_dataset=work.samples(),
            callbacks=[_Timing(stopwatch)],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return stopwatch.seconds
