"""What exact resume costs a training step of a tiny BERT, with it and without it, in turns.

Run with `lightning-gaudi simulate --cards 1 -- python benchmarks/reliability_cost.py`. It also
counts how often the host waits for the device in these steps. Times are this process's on the CPU,
where all that is kept is done, so that what else the machine does counts less.
"""

from __future__ import annotations

import logging
import sys
import warnings
from statistics import median
from time import process_time

import torch
from interleaved import Result, exit_code, table
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

from lightning_gaudi._core import vendor
from lightning_gaudi.strategies import SingleHPUStrategy

NUM_WARMUP_STEPS, NUM_STEPS, NUM_ROUNDS = 5, 40, 11
BATCH_SIZE, NUM_TOKENS, VOCABULARY = 8, 32, 128
SIDES = ("on", "off")
LIMIT = 1.02


class TinyBert(LightningModule):
    """Two layers of 32."""

    def __init__(self) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
        )
        self.model = BertForSequenceClassification(config)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        tokens, labels = batch
        loss: torch.Tensor = self.model(input_ids=tokens, labels=labels).loss
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Stopwatch(Callback):
    """Times the steps after the warm-up, and counts how often the host waits in them."""

    def __init__(self) -> None:
        self.start = self.end = 0.0
        self.num_syncs = 0

    def on_train_batch_start(
        self, trainer: Trainer, module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        if batch_idx == NUM_WARMUP_STEPS:
            self.num_syncs, self.start = -_num_syncs(), process_time()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        if batch_idx == NUM_WARMUP_STEPS + NUM_STEPS - 1:
            self.end = process_time()
            self.num_syncs += _num_syncs()


def _num_syncs() -> int:
    return int(vendor.metric("host_sync")["TotalNumber"])  # type: ignore[index]


def time_steps(side: str) -> Stopwatch:
    """Train anew, with exact resume on or off."""
    torch.manual_seed(0)
    num_samples = BATCH_SIZE * (NUM_WARMUP_STEPS + NUM_STEPS)
    tokens = torch.randint(VOCABULARY, (num_samples, NUM_TOKENS))
    stopwatch = Stopwatch()
    trainer = Trainer(
        accelerator="hpu",
        devices=1,
        strategy=SingleHPUStrategy(reliability=f"exact_resume={side}"),
        max_epochs=1,
        logger=False,
        callbacks=[stopwatch],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = TensorDataset(tokens, tokens[:, 0] % 2)
    trainer.fit(TinyBert(), DataLoader(data, batch_size=BATCH_SIZE, shuffle=True))
    return stopwatch


def main() -> int:
    """Measure, print a table, and return 1 if the ratio is above its limit or the host waits."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    for side in SIDES:
        time_steps(side)
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    num_syncs = 0
    for index in range(NUM_ROUNDS):
        for side in SIDES if index % 2 else SIDES[::-1]:
            watch = time_steps(side)
            times[side].append((watch.end - watch.start) / NUM_STEPS)
            num_syncs += watch.num_syncs if side == "on" else 0
    ratio = median(on / off for on, off in zip(times["on"], times["off"], strict=True))
    result = Result(
        "tiny BERT, one step", median(times["on"]), median(times["off"]), ratio, limit=LIMIT
    )
    print(table([result], "on", "off"))
    print(f"The host waited {num_syncs} times in {NUM_ROUNDS * NUM_STEPS} steps.")
    return exit_code([result]) or int(num_syncs > 0)


if __name__ == "__main__":
    sys.exit(main())
