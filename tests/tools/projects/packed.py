"""An LSTM on packed sequences, by pytorch_lightning; its loader gives no lengths."""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy, MulticlassRecall


class Tagger(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(500, 32)
        self.rnn = nn.LSTM(32, 64, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(128, 9)
        self.accuracy = MulticlassAccuracy(9, ignore_index=-100)
        self.recall = MulticlassRecall(9, ignore_index=-100)

    def forward(self, words):
        lengths = (words > 0).sum(dim=1)
        packed = pack_padded_sequence(
            self.embedding(words), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.head(states)

    def _loss(self, batch):
        words, tags = batch
        logits = self(words)
        tags = tags[:, : logits.shape[1]]
        return nn.functional.cross_entropy(logits.transpose(1, 2), tags), logits, tags

    def training_step(self, batch, batch_idx):
        loss, logits, tags = self._loss(batch)
        self.log("accuracy", self.accuracy(logits.transpose(1, 2), tags))
        return loss

    def validation_step(self, batch, batch_idx):
        loss, logits, tags = self._loss(batch)
        self.recall.update(logits.argmax(-1), tags)
        self.log("val_loss", loss)
        self.log("recall", self.recall)

    def configure_optimizers(self):
        return torch.optim.RMSprop(self.parameters(), lr=1e-3)


def collate(samples):
    words = pad_sequence([each[0] for each in samples], batch_first=True)
    return words, pad_sequence([each[1] for each in samples], batch_first=True, padding_value=-100)


def make_samples(number):
    generator = torch.Generator().manual_seed(number)
    lengths = torch.randint(3, 25, (number,), generator=generator).tolist()
    return [
        (
            torch.randint(1, 500, (length,), generator=generator),
            torch.randint(0, 9, (length,), generator=generator),
        )
        for length in lengths
    ]


if __name__ == "__main__":
    trainer = pl.Trainer(accelerator="hpu", devices=1, max_steps=6, val_check_interval=6)
    trainer.fit(
        Tagger(),
        DataLoader(make_samples(128), 8, collate_fn=collate),
        DataLoader(make_samples(32), 8, collate_fn=collate),
    )
