"""Texts classified by nn.TransformerEncoder with a padding mask."""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from torchmetrics.classification import Accuracy
from torchmetrics.text import Perplexity

VOCABULARY, NUM_CLASSES = 1000, 4


def collate(samples):
    texts = pad_sequence([each[0] for each in samples], batch_first=True)
    return texts, torch.tensor([each[1] for each in samples])


def make_samples(num_samples):
    generator = torch.Generator().manual_seed(num_samples)
    lengths = torch.randint(5, 40, (num_samples,), generator=generator).tolist()
    return [
        (torch.randint(1, VOCABULARY, (length,), generator=generator), length % NUM_CLASSES)
        for length in lengths
    ]


class Encoder(pl.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, 4, 128, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, NUM_CLASSES)
        self.words = nn.Linear(width, VOCABULARY)
        self.accuracy = Accuracy("multiclass", num_classes=NUM_CLASSES)
        self.perplexity = Perplexity(ignore_index=0)

    def forward(self, texts):
        is_padding = texts == 0
        hidden = self.encoder(self.embedding(texts), src_key_padding_mask=is_padding)
        return hidden, hidden.masked_fill(is_padding[..., None], 0).mean(1)

    def training_step(self, batch, _):
        hidden, pooled = self(batch[0])
        is_word = batch[0] != 0
        of_words = nn.functional.cross_entropy(self.words(hidden[is_word]), batch[0][is_word])
        loss = nn.functional.cross_entropy(self.head(pooled), batch[1])
        self.log_dict({"words": of_words, "loss": loss}, prog_bar=True)
        return loss + of_words

    def validation_step(self, batch, _):
        hidden, pooled = self(batch[0])
        self.accuracy(self.head(pooled), batch[1])
        if hidden.shape[1] == batch[0].shape[1]:
            self.perplexity(self.words(hidden), batch[0])
            self.log("perplexity", self.perplexity)
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    train = DataLoader(make_samples(256), 16, collate_fn=collate)
    val = DataLoader(make_samples(64), 16, collate_fn=collate)
    trainer = pl.Trainer(accelerator="hpu", devices=1, max_epochs=1, gradient_clip_val=1.0)
    trainer.fit(Encoder(), train, val)
