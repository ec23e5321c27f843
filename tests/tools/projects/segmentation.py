"""A small U-Net that labels pixels, some of which do not count."""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassJaccardIndex
from torchmetrics.segmentation import GeneralizedDiceScore, MeanIoU


class Scenes(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        labels = torch.randint(0, 4, (64, 64), generator=generator)
        labels[0] = 255
        return torch.rand(3, 64, 64, generator=generator), labels


class UNet(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU())
        self.deep = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(8, 64)
        )
        self.up = nn.Upsample(scale_factor=2, mode="bilinear")
        self.head = nn.Conv2d(96, 4, 1)
        self.jaccard = MulticlassJaccardIndex(4, ignore_index=255)
        self.dice, self.iou = GeneralizedDiceScore(4), MeanIoU(4)

    def forward(self, pictures):
        shallow = self.down(pictures)
        return self.head(torch.cat([shallow, self.up(self.deep(shallow))], dim=1))

    def training_step(self, batch):
        logits = self(batch[0])
        loss = nn.functional.cross_entropy(logits, batch[1], ignore_index=255)
        counts = batch[1] != 255
        right = (logits.argmax(1)[counts] == batch[1][counts]).float().mean()
        self.log("right", right)
        return loss

    def validation_step(self, batch):
        logits, labels = self(batch[0]), batch[1]
        self.jaccard(logits, labels)
        found = nn.functional.one_hot(logits.argmax(1), 4).movedim(-1, 1)
        wanted = nn.functional.one_hot(labels.clamp(max=3), 4).movedim(-1, 1)
        self.dice.update(found, wanted)
        self.iou.update(found, wanted)
        self.log_dict({"jaccard": self.jaccard, "dice": self.dice, "iou": self.iou})

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), weight_decay=0.05)


if __name__ == "__main__":
    trainer = pl.Trainer(accelerator="hpu", devices=1, max_epochs=1)
    trainer.fit(UNet(), DataLoader(Scenes(), 4, shuffle=True), DataLoader(Scenes(), 4))
