"""A script for Lightning's Trainer with eight faults; the lines name the rules that they meet."""

import sys

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader

VOCABULARY = 50


def sentences(count):
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, 60, (count,), generator=draw).tolist()
    return [torch.randint(1, VOCABULARY, (length,), generator=draw) for length in lengths]


def pad(rows):
    tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"input_ids": tokens, "attention_mask": (tokens != 0).long()}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(nn.functional.silu(self.up(self.norm(x))) * 0.5)  # uncompiled


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16, VOCABULARY)

    def on_train_start(self):
        # A loader that the Trainer does not know, whose workers are forked by default.
        noise = DataLoader(torch.rand(400, 1), 1, num_workers=1)  # fork-beside-card
        self.noise = iter(noise)

    def training_step(self, batch, batch_idx):
        tokens, mask = batch["input_ids"], batch["attention_mask"].bool()
        places = torch.arange(tokens.shape[1]).to(self.device)  # copy-to-card-blocks
        decay = torch.ones(1, dtype=torch.float64, device=self.device)  # float64-demoted
        x = self.embedding(tokens) * (1 + places[:, None] * decay.float() / 100)
        x = x + next(self.noise).to(self.device, non_blocking=True)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x[:, :-1])
        kept = mask[:, 1:]
        loss = nn.functional.cross_entropy(logits[kept], tokens[:, 1:][kept])  # mask-index-dynamic
        self.middle = x.detach().nanmedian()  # mode-on-cpu
        self.last_loss = loss.item()  # item-waits
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    pl.seed_everything(0)
    loader = DataLoader(sentences(400), 4, collate_fn=pad)  # dynamic-shapes
    devices = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    trainer = pl.Trainer(
        accelerator="hpu",
        devices=devices,
        max_epochs=5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), loader)
    print("trained to the end")
