"""A convolutional net on pictures with augmentation in workers, and metrics of many classes."""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassCohenKappa,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
    MulticlassMatthewsCorrCoef,
)

NUM_CLASSES = 7


class Pictures(Dataset):
    def __init__(self, num_pictures: int, is_augmented: bool) -> None:
        self.num_pictures, self.is_augmented = num_pictures, is_augmented

    def __len__(self) -> int:
        return self.num_pictures

    def __getitem__(self, index: int):
        generator = torch.Generator().manual_seed(index)
        picture = torch.rand(3, 32, 32, generator=generator)
        if self.is_augmented and index % 2:
            picture = picture.flip(-1)
        return picture, index % NUM_CLASSES


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.1),
        )
        self.head = nn.Linear(64, NUM_CLASSES)
        self.train_accuracy = MulticlassAccuracy(NUM_CLASSES)
        self.val_metrics = nn.ModuleList(
            [
                MulticlassAccuracy(NUM_CLASSES, top_k=2),
                MulticlassF1Score(NUM_CLASSES),
                MulticlassAUROC(NUM_CLASSES),
                MulticlassCohenKappa(NUM_CLASSES),
                MulticlassMatthewsCorrCoef(NUM_CLASSES),
            ]
        )
        self.matrix = MulticlassConfusionMatrix(NUM_CLASSES)

    def training_step(self, batch):
        pictures, labels = batch
        logits = self.head(self.body(pictures))
        self.train_accuracy(logits, labels)
        self.log("train_accuracy", self.train_accuracy, on_step=True, on_epoch=True)
        return nn.functional.cross_entropy(logits, labels, label_smoothing=0.1)

    def validation_step(self, batch):
        pictures, labels = batch
        logits = self.head(self.body(pictures))
        for metric in self.val_metrics:
            metric(logits, labels)
            self.log(type(metric).__name__, metric, on_epoch=True)
        self.matrix(logits, labels)

    def on_validation_epoch_end(self):
        self.print(self.matrix.compute().cpu().tolist())
        self.matrix.reset()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)]


if __name__ == "__main__":
    trainer = pl.Trainer(accelerator="hpu", devices=1, max_epochs=1, precision="bf16-mixed")
    trainer.fit(
        Net(),
        DataLoader(Pictures(256, True), 32, shuffle=True, num_workers=2, persistent_workers=True),
        DataLoader(Pictures(64, False), 32, num_workers=1),
    )
