"""Has the work of `trainer_overhead`, and trains it in Lightning's Trainer and in a bare loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from benchmarks.tiny import BATCH_SIZE, NUM_TOKENS, VOCABULARY, tiny_bert

Sample = dict[str, Tensor]
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Work:
    """A model and its samples. The forward takes tensors by name, and returns the loss first."""

    name: str
    make: Callable[[], nn.Module]
    sample: Callable[[], Sample]
    num_warmup_steps: int
    num_steps: int
    batch_size: int = BATCH_SIZE

    def samples(self) -> list[Sample]:
        """Returns the samples, the same for every side."""
        torch.manual_seed(0)
        num_batches = self.num_warmup_steps + self.num_steps
        return [self.sample() for _ in range(num_batches * self.batch_size)]

    def model(self) -> nn.Module:
        """Returns the model, with the same weights for every side."""
        torch.manual_seed(0)
        return self.make()

    def loader(self) -> DataLoader[Any]:
        """Returns batches of tensors by name."""
        samples: Any = self.samples()
        return DataLoader(samples, self.batch_size, collate_fn=default_collate, shuffle=True)


class TinyMlp(nn.Module):
    """Has layers of 16, 32 and 4, to measure the cost of calls rather than of work."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor]:
        return (nn.functional.cross_entropy(self.layers(inputs), labels),)


def tiny_mlp_work() -> Work:
    def sample() -> Sample:
        return {"inputs": torch.randn(16), "labels": torch.randint(4, ())}

    return Work("tiny MLP", TinyMlp, sample, num_warmup_steps=20, num_steps=300)


def tiny_bert_work() -> Work:
    def sample() -> Sample:
        ids = torch.randint(VOCABULARY, (NUM_TOKENS,))
        return {"input_ids": ids, "labels": ids}

    return Work("tiny BERT", tiny_bert, sample, num_warmup_steps=5, num_steps=40)


@dataclass
class Stopwatch:
    """Measures from the beginning of the first step after the warm-up to the end of the last."""

    work: Work
    _begin: float = field(default=0.0, init=False)
    seconds: float = field(default=0.0, init=False)
    """The mean time of a step."""

    def begins(self, step: int) -> None:
        """Notes that a step begins; steps are counted from 0."""
        if step == self.work.num_warmup_steps:
            self._begin = perf_counter()

    def ends(self, step: int) -> None:
        """Notes that a step has ended."""
        if step == self.work.num_warmup_steps + self.work.num_steps - 1:
            self.seconds = (perf_counter() - self._begin) / self.work.num_steps


class _Timing(Callback):
    def __init__(self, stopwatch: Stopwatch) -> None:
        self.stopwatch = stopwatch

    def on_train_batch_start(
        self, trainer: Trainer, module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        self.stopwatch.begins(batch_idx)

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.stopwatch.ends(batch_idx)


class _Module(LightningModule):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Sample) -> Tensor:
        loss: Tensor = self.model(**batch)[0]
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=LEARNING_RATE)


def lightning(work: Work, accelerator: str) -> float:
    """Trains in Lightning's Trainer, and returns the seconds a step."""
    stopwatch = Stopwatch(work)
    trainer = Trainer(
        accelerator=accelerator,
        devices=1,
        max_epochs=1,
        logger=False,
        callbacks=[_Timing(stopwatch)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(_Module(work.model()), work.loader())
    return stopwatch.seconds


def bare_loop(work: Work, device: str) -> float:
    """Trains in as few lines as possible, and returns the seconds a step."""
    stopwatch = Stopwatch(work)
    model = work.model().to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    for step, batch in enumerate(work.loader()):
        stopwatch.begins(step)
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
        loss = model(**moved)[0]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stopwatch.ends(step)
    return stopwatch.seconds
