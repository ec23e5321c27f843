"""Text classification with a small BERT, in the `pytorch_lightning` namespace, and resumed.

Which package of the standard library is a line of code from? Half of the epochs, a checkpoint, and
the other half in a Trainer that goes on from it.
"""

import argparse
import re
import sysconfig
import zlib
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy
from transformers import AutoModelForSequenceClassification, BertConfig

PACKAGES = ("asyncio", "email", "unittest", "tkinter", "ctypes", "xml")
NUM_TOKENS, VOCABULARY = 24, 2000


def encode(text: str) -> list[int]:
    """Hashes of the words, after [CLS] = 1 and padded with 0."""
    words = re.findall(r"\w+", text.lower())[: NUM_TOKENS - 1]
    ids = [1] + [2 + zlib.crc32(word.encode()) % (VOCABULARY - 2) for word in words]
    return ids + [0] * (NUM_TOKENS - len(ids))


class StdlibLines(pl.LightningDataModule):
    def __init__(self, batch_size: int, per_class: int = 640) -> None:
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage: str) -> None:
        texts, labels = [], []
        for label, package in enumerate(PACKAGES):
            folder = Path(sysconfig.get_path("stdlib")) / package
            source = "\n".join(path.read_text("utf-8") for path in sorted(folder.glob("*.py")))
            lines = [line for line in source.splitlines() if len(line.split()) > 2]
            chunks = [" ".join(lines[i : i + 3]) for i in range(0, len(lines), 3)]
            texts += chunks[: self.hparams.per_class]
            labels += [label] * len(chunks[: self.hparams.per_class])
        tokens, labels = torch.tensor([encode(text) for text in texts]), torch.tensor(labels)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        val, train = order[:384], order[384:]
        self.train = TensorDataset(tokens[train], labels[train])
        self.val = TensorDataset(tokens[val], labels[val])

    def train_dataloader(self):
        return DataLoader(self.train, self.hparams.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val, self.hparams.batch_size)


class TextClassifier(pl.LightningModule):
    def __init__(self, lr: float = 1e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        config = BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=128,
            max_position_embeddings=NUM_TOKENS,
            num_labels=len(PACKAGES),
        )
        self.bert = AutoModelForSequenceClassification.from_config(config)
        self.val_accuracy = MulticlassAccuracy(len(PACKAGES), average="micro")

    def forward(self, tokens, labels=None):
        mask, types = (tokens != 0).long(), torch.zeros_like(tokens)
        return self.bert(tokens, attention_mask=mask, token_type_ids=types, labels=labels)

    def training_step(self, batch, batch_idx):
        loss = self(*batch).loss
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        tokens, labels = batch
        self.val_accuracy(self(tokens).logits, labels)
        self.log("val_accuracy", self.val_accuracy, prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def build_trainer(args: argparse.Namespace, max_epochs: int) -> pl.Trainer:
    return pl.Trainer(
        accelerator=args.accelerator,
        devices=args.devices,
        strategy=args.strategy,
        precision=args.precision,
        max_epochs=max_epochs,
        callbacks=ModelCheckpoint(args.checkpoints, save_last=True),
        enable_progress_bar=False,
        logger=False,
    )


def main(args: argparse.Namespace) -> None:
    pl.seed_everything(args.seed, workers=True)
    trainer = build_trainer(args, args.max_epochs // 2)
    data = StdlibLines(args.batch_size // trainer.world_size)
    trainer.fit(TextClassifier(), data)

    resumed = build_trainer(args, args.max_epochs)
    resumed.fit(TextClassifier(), data, ckpt_path=trainer.checkpoint_callback.last_model_path)
    if resumed.is_global_zero:
        print(f"metric: val_accuracy {resumed.callback_metrics['val_accuracy']:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--max_epochs", type=int, default=6)
    parser.add_argument("--batch_size", type=int, default=32, help="over all devices")
    parser.add_argument("--checkpoints", default="checkpoints/pl_namespace")
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
