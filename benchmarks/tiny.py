"""Has a BERT of two layers of 128, so small that the cost of what surrounds it shows."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule
from transformers import BertConfig, BertForMaskedLM

BATCH_SIZE, NUM_TOKENS, VOCABULARY = 8, 64, 1000


def tiny_bert(**settings: float) -> BertForMaskedLM:
    """Returns a BERT of two layers of 128 with two heads; `settings` are those of `BertConfig`."""
    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 2}
    config = BertConfig(vocab_size=VOCABULARY, num_hidden_layers=2, **sizes | settings)
    return BertForMaskedLM(config)


class TinyBert(LightningModule):
    """Learns to repeat the tokens that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = tiny_bert()

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.bert(input_ids=batch, labels=batch).loss
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)
