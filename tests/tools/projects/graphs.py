"""Messages along the edges of graphs: degrees by bincount, sums by scatter, pooling by index."""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics.classification import MultilabelAccuracy, MultilabelF1Score, MultilabelRankingLoss


def collate(graphs):
    sizes = torch.tensor([len(each["nodes"]) for each in graphs])
    first = sizes.cumsum(0) - sizes
    return {
        "nodes": torch.cat([each["nodes"] for each in graphs]),
        "edges": torch.cat(
            [each["edges"] + n for each, n in zip(graphs, first, strict=True)], dim=1
        ),
        "graph_of_node": torch.repeat_interleave(torch.arange(len(graphs)), sizes),
        "labels": torch.stack([each["labels"] for each in graphs]),
    }


def make_graphs(number):
    generator = torch.Generator().manual_seed(number)
    graphs = []
    for _ in range(number):
        num_nodes = int(torch.randint(5, 20, (1,), generator=generator))
        graphs.append(
            {
                "nodes": torch.randn(num_nodes, 8, generator=generator),
                "edges": torch.randint(0, num_nodes, (2, 3 * num_nodes), generator=generator),
                "labels": torch.randint(0, 2, (5,), generator=generator),
            }
        )
    return graphs


class Convolution(nn.Module):
    def __init__(self, num_in, num_out):
        super().__init__()
        self.linear = nn.Linear(num_in, num_out)

    def forward(self, nodes, edges):
        source, target = edges
        degrees = torch.bincount(target, minlength=len(nodes)).clamp(min=1)
        sums = torch.zeros_like(nodes).index_add(0, target, nodes[source])
        return torch.relu(self.linear(sums / degrees[:, None]))


class GraphNet(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Convolution(8, 64), Convolution(64, 64)])
        self.head = nn.Linear(64, 5)
        self.metrics = nn.ModuleList(
            [MultilabelAccuracy(5), MultilabelF1Score(5), MultilabelRankingLoss(5)]
        )

    def forward(self, batch):
        nodes = batch["nodes"]
        for layer in self.layers:
            nodes = layer(nodes, batch["edges"])
        owner = batch["graph_of_node"]
        num_graphs = int(owner.max()) + 1
        index = owner[:, None].expand_as(nodes)
        pooled = nodes.new_zeros(num_graphs, 64).scatter_reduce(0, index, nodes, "amax")
        return self.head(pooled)

    def training_step(self, batch):
        return nn.functional.binary_cross_entropy_with_logits(self(batch), batch["labels"].float())

    def validation_step(self, batch):
        scores = self(batch).sigmoid()
        is_sure = scores.amax(dim=1) > 0.5
        self.log("sure", is_sure.float().mean(), batch_size=len(scores))
        for metric in self.metrics:
            metric(scores, batch["labels"])
            self.log(type(metric).__name__, metric, batch_size=len(scores))

    def configure_optimizers(self):
        return torch.optim.Adagrad(self.parameters(), lr=0.01)


if __name__ == "__main__":
    trainer = pl.Trainer(accelerator="hpu", devices=1, max_epochs=1)
    train = DataLoader(make_graphs(64), 8, collate_fn=collate)
    trainer.fit(GraphNet(), train, DataLoader(make_graphs(16), 8, collate_fn=collate))
