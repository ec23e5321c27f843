"""Boxes found in pictures, with as many targets a picture as it has, matched by their overlap."""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics.classification import BinaryAccuracy


def overlap(a, b):
    area_a, area_b = (a[:, 2:] - a[:, :2]).prod(1), (b[:, 2:] - b[:, :2]).prod(1)
    least = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    both = (least - torch.maximum(a[:, None, :2], b[None, :, :2])).clamp(min=0).prod(2)
    return both / (area_a[:, None] + area_b[None] - both)


def make_samples(number):
    generator = torch.Generator().manual_seed(number)
    samples = []
    for _ in range(number):
        num_boxes = int(torch.randint(1, 6, (1,), generator=generator))
        corners = torch.rand(num_boxes, 2, generator=generator) * 32
        boxes = torch.cat([corners, corners + 16], dim=1)
        labels = torch.randint(0, 3, (num_boxes,), generator=generator)
        samples.append((torch.rand(3, 64, 64, generator=generator), boxes, labels))
    return samples


def collate(samples):
    pictures = torch.stack([each[0] for each in samples])
    return pictures, [{"boxes": each[1], "labels": each[2]} for each in samples]


class Detector(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 32, 3, 4, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1))
        self.head = nn.Conv2d(64, 4 + 1 + 3, 1)
        self.accuracy = BinaryAccuracy()
        centers = torch.stack(torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij"), -1)
        corners = centers.reshape(-1, 2).flip(1) * 8.0
        self.register_buffer("anchors", torch.cat([corners - 4, corners + 12], dim=1))

    def forward(self, pictures):
        return self.head(torch.relu(self.body(pictures))).flatten(2).transpose(1, 2)

    def training_step(self, batch, batch_idx):
        pictures, targets = batch
        losses = []
        for found, target in zip(self(pictures), targets, strict=True):
            overlaps = overlap(self.anchors, target["boxes"])
            best, which = overlaps.max(dim=1)
            is_object = best > 0.3
            is_object[overlaps.argmax(dim=0)] = True
            where = torch.nonzero(is_object)[:, 0]
            boxes = target["boxes"][which[where]]
            moved = self.anchors[where] + found[where, :4]
            losses += [
                nn.functional.smooth_l1_loss(moved, boxes),
                nn.functional.binary_cross_entropy_with_logits(found[:, 4], is_object.float()),
                nn.functional.cross_entropy(found[where, 5:], target["labels"][which[where]]),
            ]
        return torch.stack(losses).sum() / len(targets)

    def validation_step(self, batch, batch_idx):
        pictures, targets = batch
        for found, target in zip(self(pictures), targets, strict=True):
            scores, order = found[:, 4].sigmoid().sort(descending=True)
            kept = order[:10][scores[:10] > 0.1]
            overlaps = overlap(self.anchors[kept] + found[kept, :4], target["boxes"])
            if len(kept):
                self.accuracy.update(scores[: len(kept)], overlaps.amax(dim=1) > 0.5)
        self.log("accuracy", self.accuracy, batch_size=len(targets))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


if __name__ == "__main__":
    train = DataLoader(make_samples(32), 4, collate_fn=collate)
    val = DataLoader(make_samples(8), 4, collate_fn=collate)
    pl.Trainer(accelerator="hpu", devices=1, max_epochs=1).fit(Detector(), train, val)
