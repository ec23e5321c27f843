"""Two views of each sample brought together, with metrics of retrieval and clustering."""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.clustering import CalinskiHarabaszScore, DaviesBouldinScore
from torchmetrics.retrieval import RetrievalMAP, RetrievalMRR, RetrievalNormalizedDCG


class Pairs(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 64))
        self.temperature = nn.Parameter(torch.zeros(()))
        self.metrics = nn.ModuleList([RetrievalMAP(), RetrievalMRR(), RetrievalNormalizedDCG()])
        self.clusters = nn.ModuleList([CalinskiHarabaszScore(), DaviesBouldinScore()])

    def _alike(self, samples):
        noisy = samples + 0.1 * torch.randn_like(samples)
        a, b = (nn.functional.normalize(self.tower(each), dim=1) for each in (samples, noisy))
        return a @ b.T * self.temperature.exp()

    def training_step(self, batch, batch_idx):
        alike = self._alike(batch[0])
        own = torch.arange(len(alike), device=alike.device)
        loss = nn.functional.cross_entropy(alike, own) + nn.functional.cross_entropy(alike.T, own)
        is_other = ~torch.eye(len(alike), dtype=torch.bool, device=alike.device)
        hardest = alike[is_other].view(len(alike), -1).topk(4, dim=1).values
        return loss + hardest.logsumexp(dim=1).mean()

    def validation_step(self, batch, batch_idx):
        alike = self._alike(batch[0])
        number = len(alike)
        question = torch.arange(number, device=self.device).repeat_interleave(number)
        is_own = torch.eye(number, dtype=torch.bool, device=self.device).flatten()
        for metric in self.metrics:
            metric.update(alike.flatten(), is_own, indexes=question)
            self.log(type(metric).__name__, metric)
        for metric in self.clusters:
            metric.update(self.tower(batch[0]), batch[1])
            self.log(type(metric).__name__, metric)

    def configure_optimizers(self):
        groups = [{"params": self.tower.parameters()}, {"params": [self.temperature], "lr": 1e-2}]
        return torch.optim.AdamW(groups, lr=1e-3)


if __name__ == "__main__":
    samples = torch.randn(256, 32, generator=torch.Generator().manual_seed(3))
    data = TensorDataset(samples, torch.arange(256) % 4)
    pl.Trainer(accelerator="hpu", devices=1, max_epochs=1).fit(
        Pairs(), DataLoader(data, 32, shuffle=True), DataLoader(data, 32)
    )
