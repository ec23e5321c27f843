"""A CNN with torchmetrics, early stopping and checkpoints; the best one is tested."""

import argparse

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.functional.classification import multiclass_confusion_matrix

NUM_CLASSES = 4


def shapes(num_images: int, size: int, seed: int) -> TensorDataset:
    """Noisy images of discs, rings, squares and crosses, anywhere and of any size."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num_images) % NUM_CLASSES
    radius = size * (0.15 + 0.15 * torch.rand(num_images, 1, 1, generator=generator))
    center = size * (0.35 + 0.3 * torch.rand(2, num_images, 1, 1, generator=generator))
    grid = torch.arange(size, dtype=torch.float32)
    dy, dx = (grid[None, :, None] - center[0]).abs(), (grid[None, None, :] - center[1]).abs()
    distance = (dx**2 + dy**2).sqrt()
    candidates = torch.stack(
        [
            distance < radius,
            (distance - radius).abs() < 1,
            torch.maximum(dx, dy) < radius,
            torch.minimum(dx, dy) < 1,
        ]
    )
    images = candidates[labels, torch.arange(num_images)].float()
    noise = 0.5 * torch.randn(num_images, size, size, generator=generator)
    return TensorDataset((images + noise).unsqueeze(1), labels)


class Classifier(L.LightningModule):
    def __init__(self, width: int = 16, max_lr: float = 0.02) -> None:
        super().__init__()
        self.save_hyperparameters()
        blocks = []
        for num_in, num_out in ((1, width), (width, 2 * width), (2 * width, 2 * width)):
            conv = nn.Conv2d(num_in, num_out, 3, padding=1, bias=False)
            blocks += [conv, nn.BatchNorm2d(num_out), nn.ReLU(), nn.MaxPool2d(2)]
        self.net = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(2 * width * 4, NUM_CLASSES))
        self.val_accuracy = MulticlassAccuracy(NUM_CLASSES, average="micro")
        self.test_accuracy = MulticlassAccuracy(NUM_CLASSES, average="micro")

    def forward(self, images):
        return self.net(images)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = nn.functional.cross_entropy(self(images), labels, label_smoothing=0.05)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        logits = self(images)
        self.val_accuracy(logits, labels)
        self.log("val_loss", nn.functional.cross_entropy(logits, labels), sync_dist=True)
        self.log("val_accuracy", self.val_accuracy, prog_bar=True)

    def on_test_epoch_start(self):
        self.predicted, self.labels = [], []

    def test_step(self, batch, batch_idx):
        images, labels = batch
        logits = self(images)
        self.test_accuracy(logits, labels)
        self.log("test_accuracy", self.test_accuracy)
        self.predicted.append(logits.argmax(dim=1))
        self.labels.append(labels)

    def on_test_epoch_end(self):
        # Counted once, on the CPU: a count by value makes an accelerator wait in every batch.
        predicted = self.all_gather(torch.cat(self.predicted)).flatten().cpu()
        labels = self.all_gather(torch.cat(self.labels)).flatten().cpu()
        confusion = multiclass_confusion_matrix(predicted, labels, NUM_CLASSES)
        self.print("confusion matrix:", confusion.tolist())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.hparams.max_lr, total_steps=self.trainer.estimated_stepping_batches
        )
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def main(args: argparse.Namespace) -> None:
    L.seed_everything(args.seed, workers=True)
    checkpoints = ModelCheckpoint(dirpath=args.checkpoints, monitor="val_accuracy", mode="max")
    trainer = L.Trainer(
        accelerator=args.accelerator,
        devices=args.devices,
        strategy=args.strategy,
        precision=args.precision,
        sync_batchnorm=args.sync_batchnorm,
        max_epochs=args.max_epochs,
        callbacks=[EarlyStopping("val_loss", patience=3), checkpoints],
        enable_progress_bar=False,
        logger=False,
    )
    batch_size = args.batch_size // trainer.world_size
    train = DataLoader(shapes(4096, 16, seed=1), batch_size, shuffle=True, drop_last=True)
    val = DataLoader(shapes(1024, 16, seed=2), batch_size)
    trainer.fit(Classifier(), train, val)
    trainer.test(dataloaders=DataLoader(shapes(2048, 16, seed=3), batch_size), ckpt_path="best")
    if trainer.is_global_zero:
        print(f"metric: test_accuracy {trainer.callback_metrics['test_accuracy']:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--sync_batchnorm", action="store_true")
    parser.add_argument("--max_epochs", type=int, default=6)
    parser.add_argument("--batch_size", type=int, default=64, help="over all devices")
    parser.add_argument("--checkpoints", default="checkpoints/image_classifier")
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
