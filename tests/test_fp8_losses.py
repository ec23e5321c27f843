"""A small Llama learns in fp8 as it does in bf16: 200 steps, three seeds."""

from __future__ import annotations

import pydoc_data.topics
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM

from lightning_gaudi.precision import HPUFP8Precision
from lightning_gaudi.simulator import statistics
from lightning_gaudi.strategies import SingleHPUStrategy
from tests.helpers.tiny import QUIET

NUM_STEPS, LENGTH, BATCH_SIZE = 200, 64, 8


class _Llama(pl.LightningModule):
    """Two layers, on bytes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=256,
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=LENGTH,
                tie_word_embeddings=False,
            )
        )
        self.losses: list[Tensor] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self.model(input_ids=batch[0], labels=batch[0]).loss
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.0)


def _rows() -> DataLoader[Any]:
    """Python's own documentation, in rows."""
    topics = pydoc_data.topics.topics
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    order = torch.Generator().manual_seed(0)
    num_rows = len(text) // LENGTH
    rows = torch.frombuffer(bytearray(text[: num_rows * LENGTH]), dtype=torch.uint8)
    rows = rows.long().view(-1, LENGTH)[torch.randperm(num_rows, generator=order)]
    return DataLoader(TensorDataset(rows[: NUM_STEPS * BATCH_SIZE]), BATCH_SIZE)


def _last_losses(precision: str) -> Tensor:
    """The mean of the last 20 losses, for each seed."""
    found = []
    for seed in range(3):
        model = _Llama(seed)
        trainer = pl.Trainer(
            accelerator="hpu", devices=1, precision=precision, max_steps=NUM_STEPS, **QUIET
        )
        trainer.fit(model, _rows())
        found.append(torch.stack(model.losses[-20:]).float().mean().cpu())
    return torch.stack(found)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_losses_in_fp8_are_those_in_bf16() -> None:
    fp8, bf16 = _last_losses("fp8"), _last_losses("bf16-mixed")
    assert abs(fp8.mean() - bf16.mean()) < 0.02, (fp8, bf16)


class _Counted(_Llama):
    """Notes how many launches there were by the end of each step."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.launches: list[int] = []

    def on_train_batch_end(self, *args: Any) -> None:
        self.launches.append(statistics.launches())


@pytest.mark.slow
# torch's compiler looks at `.grad` where it goes on behind a layer that stays outside.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_layers_in_fp8_stay_outside_of_compiled_blocks_and_measuring_is_most_of_it() -> None:
    """The counts that docs/how-to/fp8.md shows, of a step of 14 products."""
    found = {}
    plugins: dict[str, dict[str, Any]]
    plugins = {"bf16": {"precision": "bf16-mixed"}, "fp8": {"precision": "fp8"}}
    plugins["interval"] = {"plugins": HPUFP8Precision(recipe={"interval": 16})}
    for name, settings in plugins.items():
        model = _Counted(0)
        settings["strategy"] = SingleHPUStrategy(compile="regions")
        trainer = pl.Trainer(accelerator="hpu", devices=1, max_steps=8, **settings, **QUIET)
        trainer.fit(model, _rows())
        found[name] = model.launches[-1] - model.launches[-2]
    page = Path(__file__).parents[1] / "docs" / "how-to" / "fp8.md"
    [row] = [each for each in page.read_text().splitlines() if "| eager mode, compiled |" in each]
    shown = [int(cell.replace(",", "")) for cell in row.split("|")[2:5]]
    assert [*found.values()] == shown
